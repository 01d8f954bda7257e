"""From the columns of a log to findings, without torch: the same while training and afterwards.

``history`` keeps what rules look back at, ``view`` turns it into features, ``cockpit_core.diagnoses`` holds the rules,
``judge`` decides what is a finding, ``replay`` feeds it a finished log.
"""

// TensorBoard's messages to its plugins: a port handed to the parent, JSON strings over it, every question answered.

interface Message {
  type: string;
  id: number;
  payload?: unknown;
  error?: string | null;
  isReply?: boolean;
}

export interface Guest {
  close(): void;
}

export function connectGuest(on: { runs(names: string[]): void; reload(): void }): Guest {
  const channel = new MessageChannel();
  const port = channel.port1;
  let next = 0;
  const send = (message: Message) => port.postMessage(JSON.stringify(message));
  const takeRuns = (payload: unknown) => {
    if (Array.isArray(payload)) on.runs(payload.filter((name): name is string => typeof name === "string"));
  };
  port.onmessage = (event) => {
    let message: Message;
    try {
      message = JSON.parse(event.data);
    } catch {
      return;
    }
    if (message.isReply) {
      if (message.type === "experimental.GetRuns") takeRuns(message.payload);
      return;
    }
    if (message.type === "experimental.RunsChanged") takeRuns(message.payload);
    if (message.type === "experimental.DataReloaded") on.reload();
    send({ type: message.type, id: message.id, payload: null, error: null, isReply: true });
  };
  try {
    window.parent.postMessage("experimental.bootstrap", "*", [channel.port2]);
    send({ type: "experimental.GetRuns", id: next++, payload: null, error: null, isReply: false });
  } catch {
    // not inside TensorBoard
  }
  return { close: () => port.close() };
}

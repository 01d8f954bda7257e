// Bytes of a message of the schema into an object with all of its fields. Unknown fields are skipped; bytes that are cut
// off or are no message throw.
import { fields } from "../gen/fields.ts";

interface Field {
  name: string;
  type: string;
  repeated: boolean;
}
export type Name = keyof typeof fields;
type Message = Record<string, unknown>;

const known = new Map<string, Map<number, Field>>();
const text = new TextDecoder();

function fieldsOf(name: string): Map<number, Field> {
  let own = known.get(name);
  if (!own) {
    const rows = fields[name as Name].split(";").map((row) => row.split(" "));
    own = new Map(
      rows.map(([number, field, type, label]) => [
        Number(number),
        { name: field, type, repeated: label === "repeated" },
      ]),
    );
    known.set(name, own);
  }
  return own;
}

const defaults: Record<string, () => unknown> = {
  double: () => 0,
  uint32: () => 0,
  int32: () => 0,
  bool: () => false,
  string: () => "",
  bytes: () => new Uint8Array(0),
  map: () => ({}),
};

function makeEmpty(name: string): Message {
  const message: Message = {};
  for (const field of fieldsOf(name).values()) message[field.name] = field.repeated ? [] : defaults[field.type]?.();
  return message;
}

const [VARINT, FIXED64, BYTES, FIXED32] = [0, 1, 2, 5];

class Reader {
  at = 0;
  private readonly view: DataView;
  constructor(private readonly bytes: Uint8Array) {
    this.view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  }

  get done(): boolean {
    return this.at >= this.bytes.length;
  }

  /** The lower 32 bits, and whether any bit was set. */
  varint(): [number, boolean] {
    let [low, any] = [0, false];
    for (let i = 0; i < 10; i++) {
      if (this.done) throw new Error("a message is cut off");
      const byte = this.bytes[this.at++];
      if (i < 5) low |= (byte & 127) << (7 * i);
      any ||= (byte & 127) > 0;
      if (byte < 128) return [low >>> 0, any];
    }
    throw new Error("a number of a message has no end");
  }

  take(): Uint8Array {
    const [size] = this.varint();
    if (size > this.bytes.length - this.at) throw new Error("a message is cut off");
    this.at += size;
    return this.bytes.subarray(this.at - size, this.at);
  }

  double(): number {
    this.move(8);
    return this.view.getFloat64(this.at - 8, true);
  }

  move(size: number): void {
    if (size > this.bytes.length - this.at) throw new Error("a message is cut off");
    this.at += size;
  }

  skip(kind: number): void {
    if (kind === VARINT) this.varint();
    else if (kind === FIXED64) this.move(8);
    else if (kind === BYTES) this.take();
    else if (kind === FIXED32) this.move(4);
    else throw new Error(`a message has a field of kind ${kind}`);
  }
}

const numbers: Record<string, [number, (reader: Reader) => unknown]> = {
  double: [FIXED64, (reader) => reader.double()],
  uint32: [VARINT, (reader) => reader.varint()[0]],
  int32: [VARINT, (reader) => reader.varint()[0] | 0],
  bool: [VARINT, (reader) => reader.varint()[1]],
};

function readEntry(bytes: Uint8Array): [string, string] {
  const reader = new Reader(bytes);
  const parts = ["", ""];
  while (!reader.done) {
    const tag = reader.varint()[0];
    if (tag === 10 || tag === 18) parts[(tag >> 3) - 1] = text.decode(reader.take());
    else reader.skip(tag & 7);
  }
  return [parts[0], parts[1]];
}

function readField(reader: Reader, kind: number, field: Field, message: Message): void {
  const { name, type, repeated } = field;
  const number = numbers[type];
  const put = (value: unknown) => {
    if (repeated) (message[name] as unknown[]).push(value);
    else message[name] = value;
  };
  if (number && kind === number[0]) put(number[1](reader));
  else if (number && repeated && kind === BYTES) {
    const packed = new Reader(reader.take());
    while (!packed.done) put(number[1](packed));
  } else if (number || kind !== BYTES) reader.skip(kind);
  else if (type === "string") put(text.decode(reader.take()));
  else if (type === "bytes") put(reader.take());
  else if (type === "map") {
    const [key, value] = readEntry(reader.take());
    Object.defineProperty(message[name], key, { value, enumerable: true, configurable: true, writable: true }); // "__proto__", too
  } else put(decode(type as Name, reader.take(), repeated ? undefined : (message[name] as Message)));
}

export function decode(name: Name, bytes: Uint8Array, into: Message = makeEmpty(name)): Message {
  const reader = new Reader(bytes);
  const own = fieldsOf(name);
  while (!reader.done) {
    const [tag] = reader.varint();
    const field = own.get(tag >>> 3);
    if (tag >>> 3 === 0) throw new Error("no message of Cockpit");
    if (field) readField(reader, tag & 7, field, into);
    else reader.skip(tag & 7);
  }
  return into;
}

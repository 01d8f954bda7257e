// Several Batches in one piece: each after its length, uint32 little endian.

export function splitFrames(bytes: Uint8Array): Uint8Array[] {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const frames: Uint8Array[] = [];
  for (let at = 0; at + 4 <= bytes.length; ) {
    const size = view.getUint32(at, true);
    if (at + 4 + size > bytes.length) break; // cut off: what is whole is used
    frames.push(bytes.subarray(at + 4, at + 4 + size));
    at += 4 + size;
  }
  return frames;
}

export function toBytes(data: DataView | ArrayBuffer | Uint8Array): Uint8Array {
  if (data instanceof Uint8Array) return data;
  return data instanceof DataView
    ? new Uint8Array(data.buffer, data.byteOffset, data.byteLength)
    : new Uint8Array(data);
}

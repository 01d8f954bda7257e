// The little of Node that the tests use; its whole type package is not worth a dependency.
declare module "node:fs" {
  export function readFileSync(path: string): Uint8Array;
  export function readFileSync(path: string, encoding: string): string;
  export function readdirSync(path: string, options?: { recursive: boolean }): string[];
}

// js/src/gen/cockpit_pb.ts from the one schema. Needs a Python with grpcio-tools (its protoc); PYTHON names it.
import { execFileSync } from "node:child_process";
import { fileURLToPath } from "node:url";

const root = fileURLToPath(new URL("../../", import.meta.url));
const python = process.env.PYTHON ?? "python3";
const plugin = "--plugin=protoc-gen-es=node_modules/.bin/protoc-gen-es";
const target = ["--es_out=js/src/gen", "--es_opt=target=ts"];
const args = ["-m", "grpc_tools.protoc", "-I", "cockpit_core/schema", plugin, ...target, "cockpit.proto"];
execFileSync(python, args, { cwd: root, stdio: "inherit" });

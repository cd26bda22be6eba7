// A foreign gRPC peer: `peer.mjs serve` is an endpoint, `peer.mjs check TARGET AUTHORITY` a client
// that runs every check against a target and prints the outcomes as JSON.
import { createRequire } from "node:module";
import { check } from "./client.mjs";
import { serve } from "./server.mjs";

const [command, target, authority] = process.argv.slice(2);
if (command === "serve") {
  serve();
} else if (command === "check" && authority) {
  process.exitCode = await check(target, authority);
} else if (command === "version") {
  console.log(createRequire(import.meta.url)("@grpc/grpc-js/package.json").version);
} else {
  console.error("usage: peer.mjs serve | peer.mjs check TARGET AUTHORITY | peer.mjs version");
  process.exitCode = 2;
}

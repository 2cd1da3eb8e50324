// Builds the dashboard into the Python package, from where `hutch serve` serves it and the wheel carries it.
import { defineConfig } from "vite";

export default defineConfig({
  base: "/",
  build: {
    outDir: "../src/hutch/server/dashboard/static",
    emptyOutDir: true,
    target: "es2022",
    modulePreload: { polyfill: false },
    assetsInlineLimit: 0,
    reportCompressedSize: false,
    license: { fileName: "THIRD_PARTY.txt" },
  },
  server: { proxy: { "/v1": "http://127.0.0.1:7300" } },
});

// Builds the dashboard into the Python package, from where `hutch serve` serves it and the wheel carries it.
import { appendFileSync, readFileSync } from "node:fs";
import { defineConfig, type Plugin } from "vite";

const OUT = "../src/hutch/server/dashboard/static";

/** Vite lists the licences of bundled scripts; the font comes by a style sheet. */
function fontLicence(): Plugin {
  return {
    name: "font-licence",
    closeBundle() {
      const text = readFileSync("node_modules/@fontsource-variable/inter/LICENSE", "utf8");
      appendFileSync(`${OUT}/THIRD_PARTY.txt`, `\n## Inter (@fontsource-variable/inter), OFL-1.1\n\n${text}`);
    },
  };
}

export default defineConfig({
  base: "/",
  plugins: [fontLicence()],
  build: {
    outDir: OUT,
    emptyOutDir: true,
    target: "es2022",
    modulePreload: { polyfill: false },
    assetsInlineLimit: 0,
    reportCompressedSize: false,
    license: { fileName: "THIRD_PARTY.txt" },
  },
  server: { proxy: { "/v1": "http://127.0.0.1:7300" } },
});

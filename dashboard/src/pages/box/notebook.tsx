// A notebook cell for the kernels of a box: run code, see what it prints and draws.

import { useState } from "react";
import { open, lines, post, remove } from "../../api/http";
import { seconds } from "../../format";
import { t, word } from "../../i18n";
import { live, type LiveBox } from "../../live";
import { Button, ErrorNotice, Loaded, Notice, Panel, Select, StateBadge, Tag, useLoaded } from "../../ui/basics";
import { attempt } from "../../ui/dialog";
import { ofBox, useAccess } from "./actions";

interface Kernel { id: string; language: string; state: string }
interface Display { data: Record<string, string>; main: boolean }
interface CodeFailure { name: string; value: string; traceback: string }
interface Result { count: number; displays: Display[]; error: CodeFailure | null; duration_sec: number; notes: string[]; verdict: { cause: string; message: string; remedy: string } }
interface Line { stream?: string; text?: string; display?: Display; error?: CodeFailure; result?: Result; failure?: { message: string } }

interface Run { code: string; language: string; printed: string; displays: Display[]; error?: CodeFailure; result?: Result; failed?: unknown }

const LANGUAGES: [string, string][] = [["python", "Python"], ["javascript", "JavaScript"], ["typescript", "TypeScript"], ["bash", "Bash"]];
const PICTURES = ["image/png", "image/jpeg", "image/gif", "image/webp"];
const MOST_RUNS = 20;
const MOST_PRINTED = 100_000;

export function Notebook({ box }: { box: LiveBox }) {
  const access = useAccess(box);
  const [language, setLanguage] = useState("python");
  const [code, setCode] = useState("");
  const [runs, setRuns] = useState<Run[]>([]);
  const [busy, setBusy] = useState(false);
  const latest = live.use((state) => state.events.find((event) => event.box_id === box.id)?.seq ?? 0);
  const kernels = useLoaded(box.id, (signal) => ofBox<{ kernels: Kernel[] }>(box, "/kernels", { signal }), `${latest} ${runs.length} ${String(busy)}`);
  const run = async () => {
    const begun: Run = { code, language, printed: "", displays: [] };
    const show = (change: (run: Run) => Run) => setRuns((before) => before.map((each, index) => (index === 0 ? change(each) : each)));
    setRuns((before) => [begun, ...before].slice(0, MOST_RUNS));
    setBusy(true);
    setCode("");
    try {
      const options = { ...access.options, body: { code, language }, headers: { Accept: "application/x-ndjson" } };
      let running = false;
      for await (const text of lines(await open("POST", `/v1/boxes/${box.id}/code`, options))) {
        if (text) show((before) => taken(before, JSON.parse(text) as Line));
        // Only now is the kernel surely there and busy.
        if (!running) kernels.reload();
        running = true;
      }
    } catch (failed) {
      show((before) => ({ ...before, failed }));
    } finally {
      setBusy(false);
    }
  };
  const act = (kernel: Kernel, action: string, done: string) => () => void attempt(done, () => action === "remove"
    ? remove(`/v1/boxes/${box.id}/kernels/${kernel.id}`, access.options)
    : post(`/v1/boxes/${box.id}/kernels/${kernel.id}/${action}`, {}, access.options)).then(kernels.reload);
  return (
    <div className="stack">
      <Panel title={t("New cell")} side={<>
        <Select label={t("Language")} value={language} onChange={setLanguage} options={LANGUAGES} />
        <Button kind="primary" onClick={() => void run()} disabled={busy || !code.trim()} blocked={access.blocked}>{busy ? t("Working…") : t("Run")} <kbd>Ctrl ↵</kbd></Button>
      </>}>
        <textarea className="mono" rows={6} aria-label={t("Code")} value={code} spellCheck={false} disabled={Boolean(access.blocked)} title={access.blocked}
          placeholder={t("Variables stay in the kernel from cell to cell.")} onChange={(event) => setCode(event.target.value)}
          onKeyDown={(event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && code.trim() && !busy) void run(); }} />
        <Loaded of={kernels} rows={1}>
          {(found) => <div className="line">{found.kernels.map((kernel) => (
            <span key={kernel.id} className="line kernel">
              <StateBadge state={kernel.state} /> <Tag>{kernel.language}</Tag>
              <Button kind="quiet" onClick={act(kernel, "interrupt", t("Interrupted"))} blocked={access.blocked}>{t("Interrupt")}</Button>
              <Button kind="quiet" onClick={act(kernel, "restart", t("Restarted"))} blocked={access.blocked}>{t("Restart")}</Button>
              <Button kind="quiet" onClick={act(kernel, "remove", t("Removed"))} blocked={access.blocked}>{t("Remove")}</Button>
            </span>
          ))}</div>}
        </Loaded>
      </Panel>
      {runs.map((each, index) => <Cell key={runs.length - index} run={each} />)}
    </div>
  );
}

function taken(run: Run, line: Line): Run {
  if (line.stream) return { ...run, printed: (run.printed + (line.text ?? "")).slice(-MOST_PRINTED) };
  if (line.display) return { ...run, displays: [...run.displays, line.display].slice(-50) };
  if (line.result) return { ...run, result: line.result, error: line.result.error ?? run.error };
  if (line.error) return { ...run, error: line.error };
  return run;
}

function Cell({ run }: { run: Run }) {
  const cause = run.result?.verdict.cause ?? "ok";
  return (
    <Panel title={<span className="mono">[{run.result?.count ?? "*"}]</span>} side={<>
      <Tag>{run.language}</Tag>
      {run.result ? <small className="dim">{seconds(run.result.duration_sec)}</small> : run.failed === undefined && <StateBadge state="running" />}
    </>}>
      <pre className="output code" tabIndex={0}>{run.code}</pre>
      {run.printed && <pre className="output" tabIndex={0}>{run.printed}</pre>}
      {run.displays.map((display, index) => <Shown key={index} display={display} />)}
      {run.error && <pre className="output failed" tabIndex={0}>{run.error.traceback || `${run.error.name}: ${run.error.value}`}</pre>}
      {run.result && cause !== "ok" && !run.error && <Notice tone="error" title={`${word(cause)}: ${run.result.verdict.message}`}>{run.result.verdict.remedy}</Notice>}
      {run.result?.notes.map((note) => <p key={note} className="dim">{note}</p>)}
      {run.failed !== undefined && <ErrorNotice error={run.failed} />}
    </Panel>
  );
}

/** Pictures and text only: markup that code makes is shown as text, and never becomes part of this page. */
function Shown({ display }: { display: Display }) {
  const picture = PICTURES.find((type) => type in display.data);
  if (picture) return <img className="picture" src={`data:${picture};base64,${display.data[picture]}`} alt={display.data["text/plain"] ?? t("Picture")} />;
  const text = display.data["text/plain"] ?? Object.values(display.data)[0] ?? "";
  return <pre className="output" tabIndex={0}>{text}</pre>;
}

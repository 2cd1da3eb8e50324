// The jobs of a box, with their output as it is written, and a line to run a command.

import { type FormEvent, useEffect, useRef, useState } from "react";
import { open, post } from "../../api/http";
import type { Job } from "../../api/types";
import { age, bytes, seconds } from "../../format";
import { t, word } from "../../i18n";
import { live, type LiveBox } from "../../live";
import { isForeign } from "../../session";
import { Button, Empty, ErrorNotice, Loaded, Panel, StateBadge, Tag, useLoaded } from "../../ui/basics";
import { useNow } from "../../ui/clock";
import { attempt } from "../../ui/dialog";
import { ofBox, useAccess } from "./actions";

const MOST_SHOWN = 200_000;

export function Jobs({ box }: { box: LiveBox }) {
  const access = useAccess(box);
  const used = live.use((state) => state.usages.get(box.id)?.usage.cpu_user_sec);
  const [command, setCommand] = useState("");
  const [chosen, setChosen] = useState("");
  // What a box has used grows with its jobs, so the list follows without asking again and again.
  const loaded = useLoaded(box.id, (signal) => ofBox<{ jobs: Job[] }>(box, "/jobs", { signal }), `${box.used_at.toFixed(0)} ${used?.toFixed(1)}`);
  const run = async (event: FormEvent) => {
    event.preventDefault();
    if (!command.trim()) return;
    await attempt("", async () => {
      const job = await post<Job>(`/v1/boxes/${box.id}/jobs`, { command, name: "dashboard" }, access.options);
      setChosen(job.id);
      setCommand("");
    });
    loaded.reload();
  };
  return (
    <>
      <form className="bar" onSubmit={(event) => void run(event)}>
        <input className="mono grow" aria-label={t("Command")} placeholder={t("Run a command in the background")} value={command}
          disabled={Boolean(access.blocked)} title={access.blocked} onChange={(event) => setCommand(event.target.value)} spellCheck={false} />
        <Button kind="primary" type="submit" blocked={access.blocked}>{t("Run")}</Button>
        <Button onClick={loaded.reload}>{t("Refresh")}</Button>
      </form>
      <Loaded of={loaded}>
        {({ jobs }) => jobs.length === 0 ? <Empty title={t("No job runs here.")}>{t("Commands that agents run in the background appear here.")}</Empty> : (
          <div className="split">
            <ul className="choices" aria-label={t("Jobs")}>
              {[...jobs].sort((one, other) => other.started_at - one.started_at).map((job) => (
                <li key={job.id}>
                  <button type="button" aria-pressed={chosen === job.id} onClick={() => setChosen(job.id)}>
                    <span className="mono cut">{commandOf(job)}</span>
                    <span className="line">
                      <StateBadge state={job.state} />
                      {job.name && <Tag>{job.name}</Tag>}
                      {job.exit_code !== null && <Tag tone={job.exit_code ? "bad" : "good"}>{t("exit {code}", { code: job.exit_code })}</Tag>}
                      <small className="dim"><Started at={job.started_at} /></small>
                    </span>
                  </button>
                </li>
              ))}
            </ul>
            <JobView key={chosen} box={box} job={jobs.find((job) => job.id === chosen)} reload={loaded.reload} />
          </div>
        )}
      </Loaded>
    </>
  );
}

/** What was asked for, without the shell that runs it. */
function commandOf(job: Job): string {
  const [shell, option, ...rest] = job.command;
  return rest.length && option === "-c" && /\/(ba|da)?sh$/.test(shell ?? "") ? rest.join(" ") : job.command.join(" ");
}

function Started({ at }: { at: number }) {
  return <>{age(at, useNow())}</>;
}

function JobView({ box, job, reload }: { box: LiveBox; job: Job | undefined; reload: () => void }) {
  const access = useAccess(box);
  if (!job) return <Empty title={t("Choose a job to see its output.")} />;
  const path = `/v1/boxes/${box.id}/jobs/${job.id}`;
  const signal = (number: number) => () =>
    void attempt(t("Signal sent"), () => post(`${path}/signal`, { number }, access.options)).then(reload);
  const running = job.state === "running";
  return (
    <Panel title={<span className="mono break">{commandOf(job)}</span>} className="job"
      side={<>
        <Button onClick={signal(2)} blocked={access.blocked || (!running && t("It has ended."))}>{t("Interrupt")}</Button>
        <Button kind="danger" onClick={signal(9)} blocked={access.blocked || (!running && t("It has ended."))}>{t("Kill")}</Button>
      </>}>
      <p className="line dim">
        {word(job.state)} · pid {job.pid} · {bytes(job.stdout_total + job.stderr_total)}
        {job.usage && <> · {seconds(job.usage.wall_sec)}</>}
      </p>
      {job.verdict && job.verdict.cause !== "ok" && <p><Tag tone="bad">{job.verdict.cause}</Tag> {job.verdict.message} <span className="dim">{job.verdict.remedy}</span></p>}
      <Output box={box} job={job.id} ended={reload} />
    </Panel>
  );
}

/** The job's output, followed until it ends. Frames: one byte for the stream (1 or 2), four for the length, the bytes. */
export function Output({ box, job, ended }: { box: LiveBox; job: string; ended: () => void }) {
  const [text, setText] = useState("");
  const [error, setError] = useState<unknown>();
  const element = useRef<HTMLPreElement>(null);
  const tell = useRef(ended);
  tell.current = ended;
  useEffect(() => {
    const stop = new AbortController();
    const read = async () => {
      const options = { admin: isForeign(box), signal: stop.signal, headers: { Accept: "application/octet-stream" } };
      const response = await open("GET", `/v1/boxes/${box.id}/jobs/${job}/follow`, options);
      const decoders = [undefined, new TextDecoder(), new TextDecoder()];
      for await (const [stream, data] of frames(response)) {
        const piece = decoders[stream]?.decode(data, { stream: true }) ?? "";
        if (piece) setText((before) => (before + piece).slice(-MOST_SHOWN));
      }
      tell.current();
    };
    read().catch((failure: unknown) => stop.signal.aborted || setError(failure));
    return () => stop.abort();
  }, [box.id, job]);
  useEffect(() => {
    const shown = element.current;
    if (shown && shown.scrollHeight - shown.scrollTop - shown.clientHeight < 120) shown.scrollTop = shown.scrollHeight;
  }, [text]);
  return (
    <>
      {error !== undefined && <ErrorNotice error={error} />}
      <pre className="output" ref={element} tabIndex={0} aria-label={t("Output")}>{text || <span className="dim">{t("No output yet.")}</span>}</pre>
    </>
  );
}

async function* frames(response: Response): AsyncGenerator<[stream: number, data: Uint8Array]> {
  const reader = response.body!.getReader();
  let held = new Uint8Array();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const joined = new Uint8Array(held.length + value.length);
      joined.set(held);
      joined.set(value, held.length);
      held = joined;
      while (held.length >= 5) {
        const size = new DataView(held.buffer, held.byteOffset).getUint32(1);
        if (held.length < 5 + size) break;
        yield [held[0]!, held.slice(5, 5 + size)];
        held = held.slice(5 + size);
      }
    }
  } finally {
    reader.cancel().catch(() => undefined);
  }
}

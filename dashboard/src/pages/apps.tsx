// Web applications in boxes of their own: made from a template, seen while they install and start, and shown in a preview.

import { useEffect, useRef, useState } from "react";
import { get, post, remove } from "../api/http";
import type { App, AppTemplate } from "../api/types";
import { moment } from "../format";
import { t, word } from "../i18n";
import { live, type LiveBox } from "../live";
import { navigate } from "../router";
import { may, seesAll } from "../session";
import { Button, Empty, Facts, Field, Link, Loaded, Loading, Notice, Panel, StateBadge, Tag, useLoaded } from "../ui/basics";
import { ActionDialog, attempt } from "../ui/dialog";
import { useAccess } from "./box/actions";
import { Output } from "./box/jobs";
import { PreviewPanel, usePreview } from "./box/preview";

const LABEL = "hutch.app";
const MOVING: ReadonlySet<string> = new Set(["creating", "installing", "starting"]);

export function Apps({ id }: { id?: string }) {
  const [making, setMaking] = useState(false);
  const [expected, setExpected] = useState("");
  const [moving, setMoving] = useState(false);
  // The stream has states of boxes, not of the programs in them: while one starts, each tick of the stream is a reason to ask.
  const tick = live.use((state) => (moving ? state.ticks : 0));
  const boxes = live.use((state) => [...state.boxes.values()].filter((box) => LABEL in box.spec.labels).map((box) => box.id + box.state).join());
  const latest = live.use((state) => state.events.find((event) => event.kind === "port")?.seq ?? 0);
  const loaded = useLoaded("apps", (signal) => get<{ apps: App[] }>("/v1/apps", { admin: seesAll(), signal }), `${tick} ${boxes} ${latest}`);
  useEffect(() => setMoving(loaded.value?.apps.some((app) => MOVING.has(app.state)) ?? false), [loaded.value]);
  return (
    <>
      <div className="bar">
        <h1>{t("Apps")}</h1>
        <span className="grow" />
        <Button kind="primary" onClick={() => setMaking(true)} blocked={!may("create") && t("Your key may not create boxes.")}>{t("New app")}</Button>
      </div>
      <Loaded of={loaded}>
        {({ apps }) => apps.length === 0 ? <Empty title={t("No app yet.")}>{t("An app is a web application in a box of its own. Choose a template: it is installed, started, and shown here.")}</Empty> : (
          <div className="split">
            <ul className="choices" aria-label={t("Apps")}>
              {[...apps].reverse().map((app) => (
                <li key={app.box_id}>
                  <button type="button" aria-pressed={id === app.box_id} onClick={() => navigate(`/apps/${app.box_id}`)}>
                    <span className="cut strong">{app.name || app.box_id.slice(0, 8)}</span>
                    <span className="line"><StateBadge state={app.state} /><Tag>{app.template}</Tag></span>
                  </button>
                </li>
              ))}
            </ul>
            <Chosen key={id} app={apps.find((each) => each.box_id === id)} expected={id === expected} reload={loaded.reload} />
          </div>
        )}
      </Loaded>
      {making && <NewApp onClose={() => setMaking(false)} done={(made) => { setExpected(made.box_id); loaded.reload(); navigate(`/apps/${made.box_id}`); }} />}
    </>
  );
}

function Chosen({ app, expected, reload }: { app: App | undefined; expected: boolean; reload: () => void }) {
  const box = live.use((state) => (app ? state.boxes.get(app.box_id) : undefined));
  if (!app) return <Empty title={t("Choose an app to see it.")} />;
  return box ? <OneApp app={app} box={box} expected={expected} reload={reload} /> : <Loading />;
}

/** `expected`: it was made in this page a moment ago, so its preview opens by itself when it answers. */
function OneApp({ app, box, expected, reload }: { app: App; box: LiveBox; expected: boolean; reload: () => void }) {
  const access = useAccess(box);
  const [removing, setRemoving] = useState(false);
  const preview = usePreview(box);
  const opened = useRef(!expected);
  const path = `/v1/apps/${app.box_id}`;
  const answers = app.state === "running";
  useEffect(() => {
    if (opened.current || !answers || access.blocked) return;
    opened.current = true;
    void preview.open(app.port);
  });
  const act = (action: string, done: string) => () => void attempt(done, () => post(`${path}/${action}`, {}, access.options)).then(reload);
  return (
    <div className="stack">
      <Panel title={app.name || app.box_id.slice(0, 8)} side={<>
        <StateBadge state={app.state} />
        {answers && !preview.shown && <Button kind="primary" onClick={() => void preview.open(app.port)} blocked={access.blocked}>{t("Preview")}</Button>}
        {answers || MOVING.has(app.state)
          ? <Button onClick={act("stop", t("Stopped"))} blocked={access.blocked}>{t("Stop")}</Button>
          : <Button kind="primary" onClick={act("start", t("Started"))} blocked={access.blocked}>{t("Start")}</Button>}
        <Button kind="danger" onClick={() => setRemoving(true)} blocked={access.blocked || (!may("destroy") && t("Your key may not destroy boxes."))}>{t("Remove")}</Button>
      </>}>
        {app.state === "failed" && <Notice tone="error" title={app.reason || word(app.state)}>{app.remedy}</Notice>}
        {app.state !== "failed" && app.reason && <Notice title={app.reason}>{app.remedy}</Notice>}
        <Facts rows={[
          [t("Template"), app.template],
          [t("Port"), app.port ? String(app.port) : ""],
          [t("Box"), <Link to={`/boxes/${app.box_id}`} className="mono">{app.box_id.slice(0, 12)}</Link>],
          [t("Owner"), app.owner],
          [t("Made"), moment(app.created_at)],
        ]} />
      </Panel>
      {preview.shown && <PreviewPanel key={preview.shown.id} preview={preview.shown} closed={!answers} end={(ended) => void preview.end(ended)} />}
      {app.job && (
        <Panel title={t("Logs")} className="job">
          <Output key={app.job} box={box} job={app.job} ended={reload} />
        </Panel>
      )}
      {removing && (
        <ActionDialog title={t("Remove {name}", { name: app.name || app.box_id.slice(0, 8) })} action={t("Remove")} danger onClose={() => setRemoving(false)}
          run={async () => { await remove(`/v1/boxes/${app.box_id}`, access.options); navigate("/apps"); reload(); }}>
          <p>{t("The box, its processes and all of its files are removed. This cannot be undone.")}</p>
        </ActionDialog>
      )}
    </div>
  );
}

function NewApp({ onClose, done }: { onClose: () => void; done: (made: App) => void }) {
  const templates = useLoaded("templates", (signal) => get<{ templates: AppTemplate[] }>("/v1/app-templates", { signal }));
  const [template, setTemplate] = useState("");
  const [name, setName] = useState("");
  const [port, setPort] = useState("");
  const chosen = template || templates.value?.templates[0]?.name || "";
  const run = async () => {
    const made = await post<App>("/v1/apps", { template: chosen, name, port: Number(port) || 0 });
    done(made);
  };
  return (
    <ActionDialog title={t("New app")} action={t("Create")} onClose={onClose} run={run} ready={Boolean(chosen)}>
      <Loaded of={templates}>
        {(found) => (
          <fieldset className="templates">
            <legend>{t("Template")}</legend>
            {found.templates.map((each) => (
              <label key={each.name} className="template">
                <input type="radio" name="template" value={each.name} checked={chosen === each.name} onChange={() => setTemplate(each.name)} />
                <span>
                  <b>{each.title}</b>
                  <small>{each.description}</small>
                </span>
              </label>
            ))}
          </fieldset>
        )}
      </Loaded>
      <div className="form">
        <Field label={t("Name")}>{(id) => <input id={id} value={name} placeholder={t("optional")} autoComplete="off" spellCheck={false} onChange={(event) => setName(event.target.value)} />}</Field>
        <Field label={t("Port")} hint={t("The next free one is taken.")}>
          {(id) => <input id={id} inputMode="numeric" value={port} placeholder={String(templates.value?.templates.find((each) => each.name === chosen)?.port ?? "")} onChange={(event) => setPort(event.target.value)} />}
        </Field>
      </div>
    </ActionDialog>
  );
}

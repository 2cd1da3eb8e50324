// One box: what it is, and each of its parts (terminal, jobs, files, …) under an address of its own.

import { lazy, Suspense, useRef } from "react";
import { get } from "../../api/http";
import type { BoxInfo } from "../../api/types";
import { boxTitle } from "../../format";
import { t, type Text } from "../../i18n";
import { live, type LiveBox, now } from "../../live";
import { seesAll } from "../../session";
import { CopyText, Link, Loaded, Loading, Notice, StateBadge, useLoaded, useShownLink } from "../../ui/basics";
import { TimeLeft } from "../../ui/clock";
import { Icon } from "../../ui/icons";
import { useTitle } from "../../ui/title";
import { BoxActions } from "./actions";
import { Summary } from "./summary";

const Terminal = lazy(() => import("./terminal").then((tab) => ({ default: tab.Terminal })));
const Jobs = lazy(() => import("./jobs").then((tab) => ({ default: tab.Jobs })));
const Files = lazy(() => import("./files").then((tab) => ({ default: tab.Files })));
const Changes = lazy(() => import("./changes").then((tab) => ({ default: tab.Changes })));
const Ports = lazy(() => import("./ports").then((tab) => ({ default: tab.Ports })));
const Notebook = lazy(() => import("./notebook").then((tab) => ({ default: tab.Notebook })));
const Records = lazy(() => import("./records").then((tab) => ({ default: tab.Records })));

const TABS: [name: string, title: Text][] = [
  ["summary", "Summary"],
  ["terminal", "Terminal"],
  ["jobs", "Jobs"],
  ["files", "Files"],
  ["changes", "Changes"],
  ["ports", "Ports"],
  ["notebook", "Notebook"],
  ["events", "Events"],
  ["receipts", "Receipts"],
];

export function BoxPage({ id, tab }: { id: string; tab: string }) {
  const present = live.use((state) => state.boxes.get(id));
  const connection = live.use((state) => state.connection);
  const last = useRef<LiveBox>(undefined);
  if (present) last.current = present;
  const box = last.current;
  useTitle(box ? boxTitle(box) : id.slice(0, 8));
  if (!box) return connection === "connecting" ? <Loading rows={5} /> : <Absent id={id} tab={tab} />;
  return <BoxView box={box} tab={tab} gone={!present && connection === "live"} />;
}

/** A box that the live picture does not hold: gone, another owner's, or never there. */
function Absent({ id, tab }: { id: string; tab: string }) {
  const loaded = useLoaded(id, (signal) => get<BoxInfo>(`/v1/boxes/${encodeURIComponent(id)}`, { admin: seesAll(), signal }));
  if (tab === "events" || tab === "receipts") {
    return (
      <>
        <h1 className="mono">{id}</h1>
        <Tabs id={id} tab={tab} only={["events", "receipts"]} />
        <Suspense fallback={<Loading />}><Records id={id} which={tab} /></Suspense>
      </>
    );
  }
  return (
    <>
      <h1 className="mono break">{id}</h1>
      <Loaded of={loaded}>{(box) => <BoxView box={{ ...box, measured_at: now() }} tab={tab} gone={false} />}</Loaded>
      <p><Link to="/boxes">{t("All boxes")}</Link> · <Link to={`/boxes/${id}/events`}>{t("Events")}</Link> · <Link to={`/boxes/${id}/receipts`}>{t("Receipts")}</Link></p>
    </>
  );
}

function BoxView({ box, tab, gone }: { box: LiveBox; tab: string; gone: boolean }) {
  const why = live.use((state) => state.gone.get(box.id));
  return (
    <div className="box-page">
      <div className="box-head">
        <div className="stack">
          <div className="bar">
            <h1 className="cut" title={boxTitle(box)}>{boxTitle(box)}</h1>
            {gone ? <StateBadge state="gone" /> : <StateBadge state={box.state} />}
          </div>
          <div className="bar facts-line">
            <span className="cut">{box.owner} · {box.spec.profile} · {box.provider}</span>
            {!gone && <span className="line" title={t("Time left")}><Icon name="clock" size={14} /><TimeLeft box={box} /></span>}
            <CopyText text={box.id} />
          </div>
        </div>
        {!gone && <BoxActions box={box} />}
      </div>
      {gone && <Notice tone="warning" title={t("This box is gone.")}>{why} {t("Its events and receipts remain.")}</Notice>}
      {!gone && (box.state === "error" || box.state === "unknown") && <Notice tone="error" title={box.reason || box.state} />}
      {!gone && (box.state === "creating" || box.state === "restoring") && <Notice title={t("The box is being made.")}>{t("This page follows it.")}</Notice>}
      <Tabs id={box.id} tab={tab} />
      <Suspense fallback={<Loading />}>
        <TabContent box={box} tab={tab} gone={gone} />
      </Suspense>
    </div>
  );
}

function TabContent({ box, tab, gone }: { box: LiveBox; tab: string; gone: boolean }) {
  if (tab === "events" || tab === "receipts") return <Records id={box.id} which={tab} />;
  if (tab === "summary") return <Summary box={box} />;
  if (gone) return null;
  if (box.state === "creating") return <Loading />;
  if (tab === "terminal") return <Terminal box={box} />;
  if (tab === "jobs") return <Jobs box={box} />;
  if (tab === "files") return <Files box={box} />;
  if (tab === "changes") return <Changes box={box} />;
  if (tab === "ports") return <Ports box={box} />;
  if (tab === "notebook") return <Notebook box={box} />;
  return <Notice tone="warning" title={t("There is no such page.")} />;
}

function Tabs({ id, tab, only }: { id: string; tab: string; only?: string[] }) {
  const row = useShownLink(tab);
  return (
    <nav className="tabs" aria-label={t("Parts of this box")} ref={row}>
      {TABS.filter(([name]) => !only || only.includes(name)).map(([name, title]) => (
        <Link key={name} to={`/boxes/${id}${name === "summary" ? "" : `/${name}`}`} current={tab === name}>
          {t(title)}
        </Link>
      ))}
    </nav>
  );
}

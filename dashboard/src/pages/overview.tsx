// The overview: whether boxes can be made and why not, what there is, how fast it goes, and what went wrong.

import type { ReactNode } from "react";
import { get } from "../api/http";
import type { Capabilities, Failure, Sample } from "../api/types";
import { age, boxTitle, milliseconds, moment, seconds } from "../format";
import { t, word } from "../i18n";
import { live, type LiveBox } from "../live";
import { seesAll, useSession } from "../session";
import { Empty, Link, Loaded, Loading, Notice, Panel, StateBadge, Tag, useLoaded } from "../ui/basics";
import { Chart, spanOf } from "../ui/chart";
import { TimeLeft, useNow } from "../ui/clock";
import { Table } from "../ui/table";
import { STATES } from "./boxes";
import { EventList } from "./events";

export function Overview() {
  const role = useSession().role;
  return (
    <>
      <h1>{t("Overview")}</h1>
      <div className="grid two">
        <StatusCard />
        <BoxCounts />
      </div>
      {role !== "user" && <Charts />}
      <div className="grid two">
        <Ending />
        <Recent />
      </div>
      <Providers />
      <Errors />
    </>
  );
}

function StatusCard() {
  const status = live.use((state) => state.status);
  const connection = live.use((state) => state.connection);
  const boxes = live.use((state) => state.boxes);
  const profiles = useLoaded("profiles", (signal) => get<{ default: string }>("/v1/profiles", { signal }));
  const next = ending(boxes)[0];
  if (!status) return <Panel title={t("Status")}><Loading /></Panel>;
  const shown = connection === "lost" ? "unreachable" : status.state;
  return (
    <Panel title={t("Status")} side={<StateBadge state={shown} />} className="status-card">
      {(status.reason || !status.available) && (
        <Notice tone={status.available ? "warning" : "error"} title={status.reason || word(status.state)}>
          {status.remedy}
        </Notice>
      )}
      <dl className="stats">
        <Stat label={t("Connected")}>{connection === "live" ? t("yes, live") : t("no, trying again")}</Stat>
        <Stat label={t("Can make boxes")}>{status.available ? t("yes") : t("no")}</Stat>
        <Stat label={t("Engine")}>{status.provider}</Stat>
        <Stat label={t("Profile")}>{profiles.value?.default ?? "–"}</Stat>
        <Stat label={t("Boxes")}>{boxes.size}</Stat>
        <Stat label={t("Ending next")}>{next ? <TimeLeft box={next} /> : "–"}</Stat>
        <Stat label={t("Running for")}><Uptime /></Stat>
        <Stat label={t("Version")}>{status.version}</Stat>
      </dl>
    </Panel>
  );
}

function Stat({ label, children }: { label: string; children: ReactNode }) {
  return (
    <div>
      <dt>{label}</dt>
      <dd className="cut">{children}</dd>
    </div>
  );
}

function Uptime() {
  const since = live.use((state) => state.started_at);
  return <>{seconds(useNow() - since)}</>;
}

function BoxCounts() {
  const boxes = live.use((state) => state.boxes);
  const pool = live.use((state) => state.numbers?.pool);
  const all = [...boxes.values()];
  const waiting = Object.entries(pool ?? {});
  return (
    <Panel title={t("Boxes")} side={<Link to="/boxes">{t("All boxes")}</Link>}>
      {all.length === 0 ? (
        <Empty title={t("No box yet.")}>{t("Boxes that agents and you make appear here at once.")}</Empty>
      ) : <>
        <div className="share" aria-hidden="true">
          {STATES.map((state) => [state, all.filter((box) => box.state === state).length] as const).filter(([, count]) => count)
            .map(([state, count]) => <i key={state} className={`state ${state}`} style={{ flexGrow: count }} />)}
        </div>
        <div className="counts">
          <Counts title={t("State")} of={all.map((box) => box.state)} show={(state) => <StateBadge state={state} />} />
          <Counts title={t("Profile")} of={all.map((box) => box.spec.profile)} />
          <Counts title={t("Owner")} of={all.map((box) => box.owner)} />
        </div>
      </>}
      {waiting.length > 0 && (
        <p className="dim">{t("Ready in the pool")}: {waiting.map(([profile, count]) => `${count} ${profile}`).join(", ")}</p>
      )}
    </Panel>
  );
}

function Counts({ title, of, show }: { title: string; of: string[]; show?: (value: string) => ReactNode }) {
  const counted = new Map<string, number>();
  for (const each of of) counted.set(each, (counted.get(each) ?? 0) + 1);
  const sorted = [...counted].sort((one, other) => other[1] - one[1]);
  return (
    <div>
      <h3>{title}</h3>
      <ul>
        {sorted.slice(0, 6).map(([value, count]) => (
          <li key={value}>
            <span className="cut">{show ? show(value) : value}</span>
            <b>{count}</b>
          </li>
        ))}
      </ul>
    </div>
  );
}

function Charts() {
  const samples = live.use((state) => state.samples);
  const curve = (of: (sample: Sample) => number | null) => samples.map((sample) => ({ at: sample.at, value: of(sample) }));
  const perSecond = (value: number) => `${value && value < 10 ? value.toFixed(1) : Math.round(value)}/s`;
  return (
    <Panel title={t("Load")} side={<small className="dim">{t("the last {time}", { time: seconds(spanOf(samples)) })}</small>} className="charts">
      <Chart title={t("Requests")} points={curve((sample) => sample.requests)} shown={perSecond} />
      <Chart title={t("Request latency (95 %)")} points={curve((sample) => sample.request_ms)} shown={milliseconds} />
      <Chart title={t("Command time (95 %)")} points={curve((sample) => sample.exec_ms)} shown={milliseconds} />
      <Chart title={t("Boxes made")} points={curve((sample) => sample.created)} shown={perSecond} />
      <Chart title={t("Errors")} points={curve((sample) => sample.failures)} shown={perSecond} tone="bad" />
    </Panel>
  );
}

/** Boxes that have a clock, those that end soonest first. */
function ending(boxes: ReadonlyMap<string, LiveBox>): LiveBox[] {
  return [...boxes.values()].filter((box) => box.remaining_sec !== null)
    .sort((one, other) => one.measured_at + one.remaining_sec! - other.measured_at - other.remaining_sec!);
}

function Ending() {
  const boxes = live.use((state) => state.boxes);
  const next = ending(boxes).slice(0, 6);
  return (
    <Panel title={t("Ending next")}>
      {next.length === 0 ? (
        <Empty title={t("No box has a clock.")} />
      ) : (
        <ul className="list">
          {next.map((box) => (
            <li key={box.id}>
              <Link to={`/boxes/${box.id}`}>{boxTitle(box)}</Link>
              <span className="dim cut">{box.owner}</span>
              <TimeLeft box={box} />
            </li>
          ))}
        </ul>
      )}
    </Panel>
  );
}

function Recent() {
  const events = live.use((state) => state.events);
  return (
    <Panel title={t("Happening")}>
      <EventList events={events.slice(0, 8)} empty={t("Nothing has happened since the server started.")} />
    </Panel>
  );
}

function Providers() {
  const loaded = useLoaded("providers", (signal) => get<{ default: string; providers: Capabilities[] }>("/v1/providers", { signal }));
  return (
    <Panel title={t("Engines and what each enforces")}>
      <Loaded of={loaded}>
        {(found) => (
          <Table
            label={t("Engines and what each enforces")}
            columns={[{ title: t("Engine"), className: "mono" }, { title: t("State") }, { title: t("Isolation") }, { title: t("Limits held by") }, { title: t("Network") }]}
            rows={[...found.providers].sort((one, other) => Number(other.usable) - Number(one.usable)).map((each) => ({
              key: each.provider,
              className: each.usable ? "" : "ended",
              cells: [
                <>{each.provider} {each.provider === found.default && <Tag>{t("default")}</Tag>}</>,
                each.usable ? <StateBadge state="ready" /> : <><StateBadge state="unavailable" /><small className="dim why">{each.reason}</small></>,
                each.usable ? each.isolation : "–",
                each.usable ? <Grades grades={each.grades} /> : "–",
                each.usable ? each.networks.join(", ") : "–",
              ],
            }))}
          />
        )}
      </Loaded>
    </Panel>
  );
}

function Grades({ grades }: { grades: Record<string, string> }) {
  return (
    <span className="grades">
      {Object.entries(grades).map(([limit, by]) => (
        <Tag key={limit} tone={by === "none" ? "bad" : ""}>{limit.replace(/_(mb|sec)$/, "")}: {by}</Tag>
      ))}
    </span>
  );
}

function Errors() {
  const now = useNow();
  const failures = live.use((state) => state.numbers?.failures ?? 0);
  const loaded = useLoaded("errors", (signal) => get<{ errors: Failure[] }>("/v1/errors", { query: { limit: 20 }, admin: seesAll(), signal }), failures);
  return (
    <Panel title={t("Recent errors")}>
      <Loaded of={loaded} rows={1}>
        {({ errors }) => errors.length === 0 ? (
          <Empty title={t("No caller has got an error.")} />
        ) : (
          <Table
            label={t("Recent errors")}
            columns={[{ title: t("When"), className: "nowrap" }, { title: t("Code") }, { title: t("Message"), className: "break" }, { title: t("Operation"), className: "mono break" }, { title: t("Owner") }]}
            rows={errors.map((each) => ({
              key: each.request + each.at,
              cells: [
                <span title={moment(each.at)}>{age(each.at, now)}</span>,
                <Tag tone={each.status >= 500 ? "bad" : ""}>{each.code}</Tag>,
                each.message, each.op, each.owner,
              ],
            }))}
          />
        )}
      </Loaded>
    </Panel>
  );
}

// The overview: whether boxes can be made and why not, what there is, how fast it goes, and what went wrong.

import { get } from "../api/http";
import type { Capabilities, Failure, Latency, Status } from "../api/types";
import { age, boxTitle, milliseconds, moment, seconds } from "../format";
import { t, word } from "../i18n";
import { live, type Point } from "../live";
import { seesAll, useSession } from "../session";
import { Empty, Facts, Link, Loaded, Loading, Notice, Panel, StateBadge, Tag, useLoaded } from "../ui/basics";
import { Chart } from "../ui/chart";
import { TimeLeft, useNow } from "../ui/clock";
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
  const boxes = live.use((state) => state.boxes.size);
  if (!status) return <Panel title={t("Status")}><Loading /></Panel>;
  const shown = connection === "lost" ? "unreachable" : status.state;
  return (
    <Panel title={t("Status")} side={<StateBadge state={shown} />} className="status-card">
      {(status.reason || !status.available) && (
        <Notice tone={status.available ? "warning" : "error"} title={status.reason || word(status.state)}>
          {status.remedy}
        </Notice>
      )}
      <Facts
        rows={[
          [t("Connected"), connection === "live" ? t("yes, live") : t("no, trying again")],
          [t("Can make boxes"), status.available ? t("yes") : t("no")],
          [t("Engine"), <span className="mono">{status.provider}</span>],
          [t("Boxes"), String(boxes)],
          [t("Version"), status.version],
          [t("Running for"), <Uptime status={status} />],
        ]}
      />
    </Panel>
  );
}

function Uptime({ status }: { status: Status }) {
  const now = useNow();
  const told = live.use((state) => state.points.at(-1)?.at ?? 0);
  return <>{seconds(status.uptime_sec + Math.max(0, told ? now - told : 0))}</>;
}

function BoxCounts() {
  const boxes = live.use((state) => state.boxes);
  const pool = live.use((state) => state.points.at(-1)?.numbers.pool);
  const all = [...boxes.values()];
  const waiting = Object.entries(pool ?? {});
  return (
    <Panel title={t("Boxes")} side={<Link to="/boxes">{t("All boxes")}</Link>}>
      {all.length === 0 ? (
        <Empty title={t("No box yet.")}>{t("Boxes that agents and you make appear here at once.")}</Empty>
      ) : (
        <div className="counts">
          <Counts title={t("State")} of={all.map((box) => box.state)} show={(state) => <StateBadge state={state} />} />
          <Counts title={t("Profile")} of={all.map((box) => box.spec.profile)} />
          <Counts title={t("Owner")} of={all.map((box) => box.owner)} />
        </div>
      )}
      {waiting.length > 0 && (
        <p className="dim">{t("Ready in the pool")}: {waiting.map(([profile, count]) => `${count} ${profile}`).join(", ")}</p>
      )}
    </Panel>
  );
}

function Counts({ title, of, show }: { title: string; of: string[]; show?: (value: string) => React.ReactNode }) {
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
  const points = live.use((state) => state.points);
  const rate = (of: (point: Point) => number) => changes(points, (before, after, passed) => (of(after) - of(before)) / passed);
  const slow = (of: (point: Point) => Latency) =>
    changes(points, (before, after) => quantile(of(before), of(after), after.numbers.bounds, 0.95) * 1000);
  const perSecond = (value: number) => `${value && value < 10 ? value.toFixed(1) : Math.round(value)}/s`;
  return (
    <Panel title={t("Now")} side={<small className="dim">{t("the last four minutes")}</small>} className="charts">
      <Chart title={t("Requests")} values={rate((point) => point.numbers.requests)} shown={perSecond} />
      <Chart title={t("Request latency (95 %)")} values={slow((point) => point.numbers.requests_latency)} shown={milliseconds} />
      <Chart title={t("Command time (95 %)")} values={slow((point) => point.numbers.exec_latency)} shown={milliseconds} />
      <Chart title={t("Boxes made")} values={rate((point) => point.numbers.created)} shown={perSecond} />
      <Chart title={t("Errors")} values={rate((point) => point.numbers.failures)} shown={perSecond} />
    </Panel>
  );
}

function changes(points: readonly Point[], of: (before: Point, after: Point, passed: number) => number): number[] {
  return points.slice(1).map((after, index) => {
    const before = points[index]!;
    const value = of(before, after, Math.max(after.at - before.at, 0.1));
    return Number.isFinite(value) && value > 0 ? value : 0;
  });
}

/** The time below which this share of the observations between two points lies. */
function quantile(before: Latency, after: Latency, bounds: number[], share: number): number {
  const counts = after.counts.map((count, index) => count - (before.counts[index] ?? 0));
  const all = counts.reduce((sum, count) => sum + count, 0);
  let seen = 0;
  for (const [index, count] of counts.entries()) {
    seen += count;
    if (all && seen >= all * share) return bounds[index] ?? bounds.at(-1)!;
  }
  return 0;
}

function Ending() {
  const boxes = live.use((state) => state.boxes);
  const next = [...boxes.values()].filter((box) => box.remaining_sec !== null)
    .sort((one, other) => one.told_at + one.remaining_sec! - other.told_at - other.remaining_sec!).slice(0, 6);
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
          <div className="table-wrap">
            <table>
              <thead>
                <tr>
                  <th>{t("Engine")}</th>
                  <th>{t("State")}</th>
                  <th>{t("Isolation")}</th>
                  <th>{t("Limits held by")}</th>
                  <th>{t("Network")}</th>
                </tr>
              </thead>
              <tbody>
                {found.providers.map((each) => (
                  <tr key={each.provider}>
                    <td className="mono">
                      {each.provider} {each.provider === found.default && <Tag>{t("default")}</Tag>}
                    </td>
                    <td>{each.usable ? <StateBadge state="ready" /> : <span title={each.remedy}><StateBadge state="unavailable" /><br /><small className="dim">{each.reason}</small></span>}</td>
                    <td>{each.usable ? each.isolation : "–"}</td>
                    <td>{each.usable ? <Grades grades={each.grades} /> : "–"}</td>
                    <td>{each.usable ? each.networks.join(", ") : "–"}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
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
  const failures = live.use((state) => state.points.at(-1)?.numbers.failures ?? 0);
  const loaded = useLoaded(`errors ${failures}`, (signal) => get<{ errors: Failure[] }>("/v1/errors", { query: { limit: 20 }, admin: seesAll(), signal }));
  return (
    <Panel title={t("Recent errors")}>
      <Loaded of={loaded} rows={1}>
        {({ errors }) => errors.length === 0 ? (
          <Empty title={t("No caller has got an error.")} />
        ) : (
          <div className="table-wrap">
            <table>
              <thead><tr><th>{t("When")}</th><th>{t("Code")}</th><th>{t("Message")}</th><th>{t("Operation")}</th><th>{t("Owner")}</th></tr></thead>
              <tbody>
                {errors.map((each) => (
                  <tr key={each.request + each.at}>
                    <td title={moment(each.at)} className="nowrap">{age(each.at, now)}</td>
                    <td><Tag tone={each.status >= 500 ? "bad" : ""}>{each.code}</Tag></td>
                    <td className="break">{each.message}</td>
                    <td className="mono break">{each.op}</td>
                    <td>{each.owner}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        )}
      </Loaded>
    </Panel>
  );
}

// Events of boxes as a list, newest first.

import type { BoxEvent } from "../api/types";
import { moment, time } from "../format";
import { word } from "../i18n";
import { Empty, Link, Tag } from "../ui/basics";

export function EventList({ events, empty, plain }: { events: readonly BoxEvent[]; empty: string; plain?: boolean }) {
  if (!events.length) return <Empty title={empty} />;
  return (
    <ul className="list events">
      {events.map((event) => (
        <li key={event.seq}>
          <time title={moment(event.at)}>{time(event.at)}</time>
          <Tag tone={toneOf(event)}>{word(event.kind)}</Tag>
          {!plain && event.box_id && <Link to={`/boxes/${event.box_id}`} className="mono">{event.box_id.slice(0, 8)}</Link>}
          <span className="break">{textOf(event)}</span>
        </li>
      ))}
    </ul>
  );
}

function textOf(event: BoxEvent): string {
  const move = event.kind === "state" && event.new ? `${word(event.old)} → ${word(event.new)}` : "";
  return [move, event.reason].filter(Boolean).join(": ");
}

function toneOf(event: BoxEvent): string {
  if (event.kind === "warning" || event.new === "error") return "bad";
  return event.kind === "asked" ? "amber" : event.kind === "created" ? "good" : "";
}

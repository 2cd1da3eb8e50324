// A small line chart of the last minutes: its newest value in words, its scale, and each value under the pointer.

import { type PointerEvent, useState } from "react";
import { time } from "../format";
import { now } from "../live";

export interface Point {
  at: number;
  /** Null where there was nothing to measure: the line has a gap. */
  value: number | null;
}

interface ChartProps {
  title: string;
  points: Point[];
  shown: (value: number) => string;
  tone?: "bad";
}

const WIDTH = 240;
const HEIGHT = 56;
const LONGEST = 300;
const SHORTEST = 60;

/** The seconds that a chart of these points shows: a server that runs for a minute fills it already. */
export function spanOf(points: readonly { at: number }[]): number {
  const known = points.length ? points.at(-1)!.at - points[0]!.at : 0;
  return Math.round(Math.min(Math.max(known, SHORTEST), LONGEST));
}

export function Chart({ title, points, shown, tone }: ChartProps) {
  const [hovered, setHovered] = useState<number>();
  const end = points.at(-1)?.at ?? now();
  const span = spanOf(points);
  const known = points.filter((point): point is Point & { value: number } => point.value !== null);
  const top = Math.max(...known.map((point) => point.value), 0);
  const x = (at: number) => Math.max(0, WIDTH * (1 - (end - at) / span));
  const y = (value: number) => HEIGHT - 1 - (top ? (value / top) * (HEIGHT - 6) : 0);
  const near = hovered === undefined ? undefined : nearest(known, end - span * (1 - hovered));
  const chosen = near ?? known.at(-1);
  const value = chosen ? shown(chosen.value) : "–";
  const point = (event: PointerEvent<SVGSVGElement>) => {
    const place = event.currentTarget.getBoundingClientRect();
    setHovered((event.clientX - place.left) / place.width);
  };
  return (
    <figure className={`chart ${tone ?? ""}`}>
      <figcaption>
        <span className="cut">{title}</span>
        <span className="line">
          <strong>{value}</strong>
          <small>{near ? time(near.at) : top > 0 ? `≤ ${shown(top)}` : ""}</small>
        </span>
      </figcaption>
      <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label={`${title}: ${value}`}
        onPointerMove={point} onPointerLeave={() => setHovered(undefined)}>
        {runs(points).map((run) => {
          const line = run.map((each) => `${x(each.at).toFixed(1)},${y(each.value).toFixed(1)}`);
          const [from, to] = [x(run[0]!.at).toFixed(1), x(run.at(-1)!.at).toFixed(1)];
          return (
            <g key={run[0]!.at}>
              <polygon points={`${from},${HEIGHT} ${line.join(" ")} ${to},${HEIGHT}`} />
              <polyline points={line.join(" ")} />
            </g>
          );
        })}
        {near && <line x1={x(near.at)} x2={x(near.at)} y1={0} y2={HEIGHT} />}
      </svg>
    </figure>
  );
}

/** The parts of a curve between its gaps; one point alone is drawn as a short line. */
function runs(points: readonly Point[]): { at: number; value: number }[][] {
  const found: { at: number; value: number }[][] = [];
  let open = false;
  for (const { at, value } of points) {
    if (value === null) open = false;
    else if (open) found.at(-1)!.push({ at, value });
    else {
      found.push([{ at: at - 1, value }, { at, value }]);
      open = true;
    }
  }
  return found;
}

function nearest<T extends Point>(points: readonly T[], at: number): T | undefined {
  return points.reduce<T | undefined>((best, each) => (!best || Math.abs(each.at - at) < Math.abs(best.at - at) ? each : best), undefined);
}

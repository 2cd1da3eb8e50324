// A small line chart without axes: its newest value in words, the curve as a hint.

interface ChartProps {
  title: string;
  values: number[];
  shown: (value: number) => string;
}

const WIDTH = 240;
const HEIGHT = 44;

export function Chart({ title, values, shown }: ChartProps) {
  const last = values.at(-1);
  const top = Math.max(...values, 1e-9);
  const step = WIDTH / Math.max(values.length - 1, 1);
  const points = values.map((value, index) => `${(index * step).toFixed(1)},${(HEIGHT - 2 - (value / top) * (HEIGHT - 6)).toFixed(1)}`);
  const label = `${title}: ${last === undefined ? "–" : shown(last)}`;
  return (
    <figure className="chart">
      <figcaption>
        <span>{title}</span>
        <strong>{last === undefined ? "–" : shown(last)}</strong>
      </figcaption>
      <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label={label}>
        {points.length > 1 && (
          <>
            <polygon points={`0,${HEIGHT} ${points.join(" ")} ${WIDTH},${HEIGHT}`} />
            <polyline points={points.join(" ")} />
          </>
        )}
      </svg>
    </figure>
  );
}

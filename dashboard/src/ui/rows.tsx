// A table of any length that draws only the rows in sight.

import { type ReactNode, useEffect, useRef, useState } from "react";

const SPARE = 8;

interface RowsProps<T> {
  label: string;
  head: ReactNode;
  items: readonly T[];
  height: number;
  className: string;
  keyOf: (item: T) => string;
  row: (item: T) => ReactNode;
  empty: ReactNode;
}

export function Rows<T>({ label, head, items, height, className, keyOf, row, empty }: RowsProps<T>) {
  const element = useRef<HTMLDivElement>(null);
  const [seen, setSeen] = useState({ top: 0, tall: 900 });
  useEffect(() => {
    const shown = element.current!;
    const look = () => setSeen({ top: shown.scrollTop, tall: shown.clientHeight });
    const watch = new ResizeObserver(look);
    watch.observe(shown);
    shown.addEventListener("scroll", look, { passive: true });
    return () => {
      watch.disconnect();
      shown.removeEventListener("scroll", look);
    };
  }, []);
  const first = Math.max(0, Math.floor(seen.top / height) - SPARE);
  const last = Math.min(items.length, Math.ceil((seen.top + seen.tall) / height) + SPARE);
  return (
    <div className={`rows ${className}`} role="table" aria-label={label} aria-rowcount={items.length + 1}>
      <div className="row head" role="row">
        {head}
      </div>
      <div className="rows-scroll" ref={element} role="rowgroup" tabIndex={items.length ? 0 : -1}>
        {items.length === 0 && <div role="row"><div role="cell">{empty}</div></div>}
        <div className="rows-tall" style={{ height: items.length * height }} role="presentation">
          {items.slice(first, last).map((item, index) => (
            <div
              key={keyOf(item)}
              className="row"
              role="row"
              aria-rowindex={first + index + 2}
              style={{ top: (first + index) * height, height }}
            >
              {row(item)}
            </div>
          ))}
        </div>
      </div>
    </div>
  );
}

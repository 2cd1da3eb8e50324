// A table whose rows become cards on a narrow screen, each value under the name of its column.

import type { ReactNode } from "react";

export interface Row {
  key: string;
  className?: string;
  cells: ReactNode[];
}

export interface Column {
  title: ReactNode;
  /** How its cells are set, such as `mono` or `nowrap`. */
  className?: string;
}

export function Table({ label, columns, rows }: { label: string; columns: Column[]; rows: Row[] }) {
  return (
    <div className="table-wrap">
      <table aria-label={label}>
        <thead>
          <tr>{columns.map((column, index) => <th key={index}>{column.title}</th>)}</tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr key={row.key} className={row.className}>
              {row.cells.map((cell, index) => (
                <td key={index} className={columns[index]?.className}>
                  <span className="card-label" aria-hidden="true">{columns[index]?.title}</span>
                  <div>{cell}</div>
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

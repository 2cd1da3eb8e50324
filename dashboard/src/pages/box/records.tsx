// What happened to a box and who did it: its events, and its receipts with the proof that they are unchanged.

import { type ReactNode, useState } from "react";
import { get, post } from "../../api/http";
import type { BoxEvent, Receipt, Verified } from "../../api/types";
import { milliseconds, moment } from "../../format";
import { t } from "../../i18n";
import { live } from "../../live";
import { seesAll } from "../../session";
import { Button, Empty, ErrorNotice, Loaded, Notice, Panel, Tag, useLoaded } from "../../ui/basics";
import { Table } from "../../ui/table";
import { EventList } from "../events";

const PAGE = 500;

export function Records({ id, which }: { id: string; which: string }) {
  return which === "events" ? <Events id={id} /> : <Receipts chain={id} />;
}

function Events({ id }: { id: string }) {
  const latest = live.use((state) => state.events.find((event) => event.box_id === id)?.seq ?? 0);
  const loaded = useLoaded(id, (signal) => everyEvent(id, signal), latest);
  return (
    <Panel title={t("Events")}>
      <Loaded of={loaded}>{(events) => <EventList events={events} empty={t("No event of this box is kept.")} plain />}</Loaded>
    </Panel>
  );
}

async function everyEvent(box: string, signal: AbortSignal): Promise<BoxEvent[]> {
  const found: BoxEvent[] = [];
  let after = 0;
  for (let page = 0; page < 20; page += 1) {
    const query = { box, after, limit: 1000 };
    const answer = await get<{ events: BoxEvent[]; cursor: number }>("/v1/events", { query, admin: seesAll(), signal });
    found.push(...answer.events);
    after = answer.cursor;
    if (answer.events.length < 1000) break;
  }
  return found.reverse();
}

export function Receipts({ chain }: { chain: string }) {
  const [after, setAfter] = useState(0);
  const [proof, setProof] = useState<{ value?: Verified; error?: unknown }>({});
  const latest = live.use((state) => state.events.find((event) => event.box_id === chain)?.seq ?? 0);
  const loaded = useLoaded(`${chain} ${after}`, (signal) =>
    get<{ receipts: Receipt[]; last: number }>("/v1/receipts", { query: { box: chain, after, limit: PAGE }, admin: seesAll(), signal }), latest);
  const verify = () => post<Verified>("/v1/receipts/verify", { box: chain }, { admin: seesAll() }).then(
    (value) => setProof({ value }), (error: unknown) => setProof({ error }));
  const check = proof.value?.chains[0];
  return (
    <>
      <div className="bar">
        <Button kind="primary" onClick={() => void verify()}>{t("Verify the chain")}</Button>
        <Button onClick={loaded.reload}>{t("Refresh")}</Button>
        {after > 0 && <Button onClick={() => setAfter(0)}>{t("From the beginning")}</Button>}
      </div>
      {proof.error !== undefined && <ErrorNotice error={proof.error} />}
      {proof.value && (proof.value.ok
        ? <Notice tone="good" title={t("{count} receipts verified: none was changed, removed or added.", { count: check?.count ?? 0 })} />
        : <Notice tone="error" title={t("The chain is broken at receipt {number}.", { number: check?.broken ?? 0 })}>{check?.problem}</Notice>)}
      <Loaded of={loaded}>
        {({ receipts, last }) => receipts.length === 0 ? <Empty title={t("There are no receipts.")} /> : (
          <>
            <Table
              label={t("Receipts")}
              columns={[{ title: "#", className: "mono" }, { title: t("When"), className: "nowrap" }, { title: t("Operation"), className: "mono" }, { title: t("Who"), className: "break" }, { title: t("What"), className: "mono break" }, { title: t("Result"), className: "nowrap" }]}
              rows={receipts.map((receipt) => ({ key: String(receipt.seq), cells: cellsOf(receipt) }))}
            />
            {receipts.length === PAGE && <Button onClick={() => setAfter(last)}>{t("Next page")}</Button>}
          </>
        )}
      </Loaded>
    </>
  );
}

function cellsOf(receipt: Receipt): ReactNode[] {
  const who = receipt.who ?? {};
  const details = Object.entries(receipt.details ?? {}).map(([name, value]) => `${name}: ${Array.isArray(value) ? value.join(" ") : String(value)}`);
  const bad = receipt.error || (receipt.cause && receipt.cause !== "ok" && receipt.cause !== "exit");
  return [
    <span title={receipt.hash}>{receipt.seq}</span>,
    moment(receipt.at),
    receipt.op,
    <>{who.session || who.role || "local"} {who.admin && <Tag tone="amber">{t("administrator")}</Tag>}</>,
    details.join(" · "),
    <>
      <Tag tone={bad ? "bad" : ""}>{receipt.error || receipt.cause || (receipt.exit_code != null ? t("exit {code}", { code: receipt.exit_code }) : "ok")}</Tag>{" "}
      <small className="dim">{receipt.duration_ms ? milliseconds(receipt.duration_ms) : ""}</small>
    </>,
  ];
}

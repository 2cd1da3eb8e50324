// What happened to a box and who did it: its events, and its receipts with the proof that they are unchanged.

import { useState } from "react";
import { get, post } from "../../api/http";
import type { BoxEvent, Receipt, Verified } from "../../api/types";
import { milliseconds, moment } from "../../format";
import { t } from "../../i18n";
import { live } from "../../live";
import { seesAll } from "../../session";
import { Button, Empty, ErrorNotice, Loaded, Notice, Tag, useLoaded } from "../../ui/basics";
import { EventList } from "../events";

const PAGE = 500;

export function Records({ id, which }: { id: string; which: string }) {
  return which === "events" ? <Events id={id} /> : <Receipts chain={id} />;
}

function Events({ id }: { id: string }) {
  const latest = live.use((state) => state.events.find((event) => event.box_id === id)?.seq ?? 0);
  const loaded = useLoaded(`${id} ${latest}`, (signal) => everyEvent(id, signal));
  return <Loaded of={loaded}>{(events) => <EventList events={events} empty={t("No event of this box is kept.")} plain />}</Loaded>;
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
  const loaded = useLoaded(`${chain} ${after} ${latest}`, (signal) =>
    get<{ receipts: Receipt[]; last: number }>("/v1/receipts", { query: { box: chain, after, limit: PAGE }, admin: seesAll(), signal }));
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
            <div className="table-wrap">
              <table>
                <thead><tr><th>#</th><th>{t("When")}</th><th>{t("Operation")}</th><th>{t("Who")}</th><th>{t("What")}</th><th>{t("Result")}</th></tr></thead>
                <tbody>{receipts.map((receipt) => <ReceiptRow key={receipt.seq} receipt={receipt} />)}</tbody>
              </table>
            </div>
            {receipts.length === PAGE && <Button onClick={() => setAfter(last)}>{t("Next page")}</Button>}
          </>
        )}
      </Loaded>
    </>
  );
}

function ReceiptRow({ receipt }: { receipt: Receipt }) {
  const who = receipt.who ?? {};
  const details = Object.entries(receipt.details ?? {}).map(([name, value]) => `${name}: ${Array.isArray(value) ? value.join(" ") : String(value)}`);
  const bad = receipt.error || (receipt.cause && receipt.cause !== "ok" && receipt.cause !== "exit");
  return (
    <tr>
      <td className="mono" title={receipt.hash}>{receipt.seq}</td>
      <td className="nowrap">{moment(receipt.at)}</td>
      <td className="mono">{receipt.op}</td>
      <td className="break">{who.session || who.role || "local"} {who.admin && <Tag tone="amber">{t("administrator")}</Tag>}</td>
      <td className="mono break">{details.join(" · ")}</td>
      <td className="nowrap">
        <Tag tone={bad ? "bad" : ""}>{receipt.error || receipt.cause || (receipt.exit_code != null ? t("exit {code}", { code: receipt.exit_code }) : "ok")}</Tag>{" "}
        <small className="dim">{receipt.duration_ms ? milliseconds(receipt.duration_ms) : ""}</small>
      </td>
    </tr>
  );
}

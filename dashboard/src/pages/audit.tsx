// The audit: chains of receipts of every box, also those that are gone, each with its proof.

import { useMemo, useState } from "react";
import { get, post } from "../api/http";
import type { Chain, Verified } from "../api/types";
import { age, moment } from "../format";
import { t } from "../i18n";
import { live } from "../live";
import { seesAll } from "../session";
import { Button, Empty, ErrorNotice, Link, Loaded, Notice, Tag, useLoaded } from "../ui/basics";
import { useNow } from "../ui/clock";
import { Rows } from "../ui/rows";
import { Receipts } from "./box/records";

export function Audit({ chain }: { chain?: string }) {
  if (chain) {
    return (
      <>
        <div className="bar"><h1 className="mono break">{chain}</h1><Link to="/audit">{t("All chains")}</Link></div>
        <Receipts chain={chain} />
      </>
    );
  }
  return <Chains />;
}

function Chains() {
  const latest = live.use((state) => state.events[0]?.seq ?? 0);
  const [text, setText] = useState("");
  const [proof, setProof] = useState<{ value?: Verified; error?: unknown; busy?: boolean }>({});
  const loaded = useLoaded("chains", (signal) => get<{ chains: Chain[] }>("/v1/receipts", { admin: seesAll(), signal }), latest);
  const shown = useMemo(() => [...(loaded.value?.chains ?? [])].filter((each) => `${each.box} ${each.owner} ${each.last_op}`.includes(text))
    .sort((one, other) => other.last_at - one.last_at), [loaded.value, text]);
  const verify = () => {
    setProof({ busy: true });
    post<Verified>("/v1/receipts/verify", {}, { admin: seesAll() }).then((value) => setProof({ value }), (error: unknown) => setProof({ error }));
  };
  const broken = proof.value?.chains.filter((each) => !each.ok) ?? [];
  return (
    <div className="full">
      <div className="bar">
        <h1>{t("Audit")}</h1>
        <input type="search" aria-label={t("Search chains")} placeholder={t("Search by box, owner, operation")} value={text} onChange={(event) => setText(event.target.value)} />
        <Button kind="primary" disabled={proof.busy} onClick={verify}>{proof.busy ? t("Working…") : t("Verify all chains")}</Button>
      </div>
      {proof.error !== undefined && <ErrorNotice error={proof.error} />}
      {proof.value && (broken.length === 0
        ? <Notice tone="good" title={t("{count} chains verified: no receipt was changed, removed or added.", { count: proof.value.chains.length })} />
        : <Notice tone="error" title={t("{count} chains are broken.", { count: broken.length })}>{broken.map((each) => `${each.box}: ${each.problem}`).join("; ")}</Notice>)}
      <Loaded of={loaded}>
        {() => (
          <Rows label={t("Audit")} className="chains" height={44} items={shown} keyOf={(each) => each.box}
            head={<><span role="columnheader">{t("Box or log")}</span><span role="columnheader">{t("Owner")}</span><span role="columnheader">{t("Receipts")}</span><span role="columnheader">{t("Last operation")}</span><span role="columnheader">{t("When")}</span></>}
            row={(each) => <>
              <span role="cell" className="cut"><Link to={`/audit/${each.box}`} className="mono">{each.box}</Link></span>
              <span role="cell" className="cut">{each.owner}</span>
              <span role="cell">{each.count} {each.pruned_at > 0 ? <Tag>{t("removed by age")}</Tag> : each.ended_at > 0 && <Tag>{t("ended")}</Tag>}</span>
              <span role="cell" className="mono cut">{each.last_op}</span>
              <span role="cell" title={moment(each.last_at)}><When at={each.last_at} /></span>
            </>}
            empty={<Empty title={t("There are no receipts.")} />} />
        )}
      </Loaded>
    </div>
  );
}

function When({ at }: { at: number }) {
  return <>{age(at, useNow())}</>;
}

// Questions of agents that wait for a person.

import { post } from "../api/http";
import type { Question } from "../api/types";
import { age } from "../format";
import { t } from "../i18n";
import { live } from "../live";
import { isForeign, may, useSession } from "../session";
import { Button, Empty, Link, Loading, Panel, Tag } from "../ui/basics";
import { useNow } from "../ui/clock";
import { attempt } from "../ui/dialog";

export function Approvals() {
  const questions = live.use((state) => state.questions);
  const connection = live.use((state) => state.connection);
  return (
    <>
      <h1>{t("Approvals")}</h1>
      {connection === "connecting" ? <Loading /> : questions.length === 0
        ? <Empty title={t("No agent waits for an answer.")}>{t("When an agent needs permission, it asks here, and the title of this page counts it.")}</Empty>
        : questions.map((question) => <Asked key={question.id} question={question} />)}
    </>
  );
}

function Asked({ question }: { question: Question }) {
  const now = useNow();
  const session = useSession();
  const foreign = isForeign(question);
  const answer = (text: string, done: string) => () =>
    void attempt(done, () => post(`/v1/questions/${question.id}`, { answer: text }, { admin: foreign && session.role === "admin" }));
  const blocked = !may("change") && t("Observers look, and change nothing.");
  const shown = Object.entries(question.arguments);
  return (
    <Panel className="question" title={question.text} side={<small className="dim">{age(question.asked_at, now)}</small>}>
      <p className="line">
        <Tag>{question.agent}</Tag> <Tag>{question.tool} {question.action}</Tag>
        {question.box && <Link to={`/boxes/${question.box}`} className="mono">{question.box.slice(0, 8)}</Link>}
        <span className="dim">{question.owner}</span>
      </p>
      {question.what && <pre className="output">{question.what}</pre>}
      {shown.length > 0 && <pre className="output">{shown.map(([name, value]) => `${name}: ${typeof value === "string" ? value : JSON.stringify(value)}`).join("\n")}</pre>}
      {question.reason && <p className="dim">{t("Rule")}: {question.reason}</p>}
      <div className="actions">
        <Button kind="primary" onClick={answer("allow", t("Allowed"))} blocked={blocked}>{t("Allow once")}</Button>
        <Button onClick={answer("always", t("Always allowed"))} blocked={blocked}>{t("Always allow")}</Button>
        <Button kind="danger" onClick={answer("deny", t("Denied"))} blocked={blocked}>{t("Deny")}</Button>
      </div>
    </Panel>
  );
}

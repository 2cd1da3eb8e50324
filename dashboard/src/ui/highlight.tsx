// Source text with colours: comments, strings, numbers and the words of common languages. It never makes markup of text.

import { type ReactNode, useMemo } from "react";

const WORDS = new Set(
  ("as async await break case catch class const continue def default del do elif else enum except export extends false False " +
    "final finally fn for from func function global go if impl import in interface is lambda let loop match mod mut new nil None " +
    "nonlocal not null or and package pass pub raise return self static struct super switch this throw true True try type typeof " +
    "undefined use var void while with yield then fi done esac echo local").split(" "),
);
const HASH = /\.(py|sh|bash|zsh|ya?ml|toml|ini|cfg|conf|rb|pl|r|mk|env)$|(Makefile|Dockerfile|\.gitignore)$/i;
const TOKENS = /("""[\s\S]*?"""|'''[\s\S]*?'''|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|`(?:\\.|[^`\\])*`)|(\/\*[\s\S]*?\*\/|<!--[\s\S]*?-->|\/\/[^\n]*)|(#[^\n]*)|(\b\d[\w.]*\b)|([A-Za-z_$][\w$]*)/g;
const LONGEST = 200_000;

export function Highlight({ text, name }: { text: string; name: string }) {
  const parts = useMemo(() => coloured(text, HASH.test(name)), [text, name]);
  return <code>{parts}</code>;
}

function coloured(text: string, hash: boolean): ReactNode[] {
  if (text.length > LONGEST) return [text];
  const parts: ReactNode[] = [];
  let end = 0;
  for (const match of text.matchAll(TOKENS)) {
    const [all, string, comment, marked, number, name] = match;
    const kind = string ? "string" : comment ? "comment" : marked && hash ? "comment" : number ? "number" : name && WORDS.has(name) ? "word" : "";
    if (!kind) continue;
    parts.push(text.slice(end, match.index), <span key={match.index} className={`code-${kind}`}>{all}</span>);
    end = match.index + all.length;
  }
  parts.push(text.slice(end));
  return parts;
}

// Words in the reader's language. The English text is the key, so a page reads as it is shown; `zh` must hold every key.

import { zh } from "./i18n/zh";
import { preferences } from "./session";

export type Text = keyof typeof zh;
type Values = Record<string, string | number>;

export function t(text: Text, values?: Values): string {
  const chosen: string = preferences.get().language === "zh" ? zh[text] : text;
  return values ? chosen.replace(/\{(\w+)\}/g, (all, name: string) => String(values[name] ?? all)) : chosen;
}

/** Follow the language, so that a component is drawn again in another one. */
export function useLanguage(): void {
  preferences.use((state) => state.language);
}

/** A word of the API, such as a state, in the reader's language; unknown words stay as they are. */
export function word(text: string): string {
  return preferences.get().language === "zh" && text in zh ? zh[text as Text] : text;
}

export function locale(): string {
  return preferences.get().language === "zh" ? "zh-CN" : "en-GB";
}

// Numbers, times and names as people read them.

import { locale, t } from "./i18n";

export function seconds(value: number): string {
  const whole = Math.max(0, Math.round(value));
  const padded = (number: number) => String(number).padStart(2, "0");
  if (whole < 60) return `${whole} ${t("s")}`;
  if (whole < 3600) return `${Math.floor(whole / 60)} ${t("min")} ${padded(whole % 60)} ${t("s")}`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} ${t("h")} ${padded(Math.floor((whole % 3600) / 60))} ${t("min")}`;
  return `${Math.floor(whole / 86400)} ${t("d")} ${Math.floor((whole % 86400) / 3600)} ${t("h")}`;
}

export function milliseconds(value: number): string {
  if (!value) return "–";
  if (value < 10) return `${value.toFixed(1)} ms`;
  return value < 1000 ? `${Math.round(value)} ms` : `${(value / 1000).toFixed(value < 10_000 ? 1 : 0)} s`;
}

export function megabytes(value: number): string {
  return value >= 1024 ? `${+(value / 1024).toFixed(1)} GB` : `${+value.toFixed(value < 10 ? 1 : 0)} MB`;
}

export function bytes(value: number): string {
  if (value < 1000) return `${value} B`;
  const units = ["KB", "MB", "GB", "TB"];
  let unit = -1;
  do {
    value /= 1000;
    unit += 1;
  } while (value >= 1000 && unit < units.length - 1);
  return `${value < 10 ? value.toFixed(1) : Math.round(value)} ${units[unit]}`;
}

export function time(at: number): string {
  return new Date(at * 1000).toLocaleTimeString(locale(), { hour12: false });
}

export function moment(at: number): string {
  const date = new Date(at * 1000);
  const today = new Date().toDateString() === date.toDateString();
  return date.toLocaleString(locale(), {
    ...(today ? {} : { month: "short", day: "numeric" }), hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false,
  });
}

export function age(at: number, now: number): string {
  const passed = now - at;
  return passed < 5 ? t("just now") : t("{time} ago", { time: short(passed) });
}

function short(value: number): string {
  if (value < 60) return `${Math.round(value)} ${t("s")}`;
  if (value < 3600) return `${Math.floor(value / 60)} ${t("min")}`;
  return value < 86400 ? `${Math.floor(value / 3600)} ${t("h")}` : `${Math.floor(value / 86400)} ${t("d")}`;
}

export function boxTitle(box: { id: string; name: string }): string {
  return box.name || box.id.slice(0, 8);
}

// The icons of the dashboard, drawn on a grid of 24 in the colour of the text beside them.

const PATHS = {
  overview: "M4 13h6V4H4zM14 20h6v-9h-6zM4 20h6v-3.5H4zM14 7.5h6V4h-6z",
  boxes: "M12 3 4 7.5v9L12 21l8-4.5v-9zM4 7.5l8 4.5 8-4.5M12 12v9",
  apps: "M4 5h16v14H4zM4 9.5h16M7 7.2h.01M10 7.2h.01",
  approvals: "M12 3l7 3v5c0 4.5-3 8-7 10-4-2-7-5.5-7-10V6zM9 12l2.2 2.2L15.2 10",
  skills: "M4 5c2.6-.8 5.6-.5 8 1 2.4-1.5 5.4-1.8 8-1v14c-2.6-.8-5.6-.5-8 1-2.4-1.5-5.4-1.8-8-1zM12 6v14",
  servers: "M9 3v5M15 3v5M6 8h12v3a6 6 0 0 1-12 0zM12 17v4",
  tools: "M20 7.5a4.5 4.5 0 0 1-6.2 4.2L7 18.5a2.1 2.1 0 0 1-3-3l6.8-6.8A4.5 4.5 0 0 1 16.5 3L14 5.5l.500 4 4-.500z",
  profiles: "M4 7h8M16 7h4M4 17h4M12 17h8M14 5v4M10 15v4",
  audit: "M6 3h8.5L18 6.5V21H6zM9 12h6M9 16h6M9 8h2.5",
  keys: "M13 9a4 4 0 1 1-8 0 4 4 0 0 1 8 0zM12 12l8 8M16.5 16.5l2-2",
  search: "M17 11a6 6 0 1 1-12 0 6 6 0 0 1 12 0zM15.5 15.5 20 20",
  clock: "M20 12a8 8 0 1 1-16 0 8 8 0 0 1 16 0zM12 7.5V12l3 2",
  folder: "M4 6h5l2 2.5h9V19H4z",
  file: "M7 3h7l4 4v14H7zM14 3v4h4",
  close: "M6 6l12 12M18 6 6 18",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name, size = 16 }: { name: IconName; size?: number }) {
  return (
    <svg className="icon" viewBox="0 0 24 24" width={size} height={size} aria-hidden="true">
      <path d={PATHS[name]} fill="none" stroke="currentColor" strokeWidth="1.8" strokeLinecap="round" strokeLinejoin="round" />
    </svg>
  );
}

export function Brand({ size = 22 }: { size?: number }) {
  return (
    <svg viewBox="0 0 32 32" width={size} height={size} aria-hidden="true">
      <path d="M3 13 16 4l13 9" fill="none" stroke="currentColor" strokeWidth="3" strokeLinecap="round" strokeLinejoin="round" />
      <rect x="4" y="13" width="24" height="15" rx="3" fill="currentColor" />
      <path d="M10 16v9M16 16v9M22 16v9" stroke="var(--panel)" strokeWidth="2.4" strokeLinecap="round" />
    </svg>
  );
}

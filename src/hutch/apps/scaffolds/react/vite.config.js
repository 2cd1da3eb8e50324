import react from '@vitejs/plugin-react'
import { defineConfig } from 'vite'

export default defineConfig({
  plugins: [react()],
  // Only previews lead to this server, and they check the names of hosts themselves.
  server: { allowedHosts: true },
})

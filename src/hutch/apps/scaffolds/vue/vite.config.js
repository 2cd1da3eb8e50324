import vue from '@vitejs/plugin-vue'
import { defineConfig } from 'vite'

export default defineConfig({
  plugins: [vue()],
  // Only previews lead to this server, and they check the names of hosts themselves.
  server: { allowedHosts: true },
})

import express from 'express'

const app = express()

app.get('/', (request, response) => {
  response.send('<!doctype html><title>Express app</title><h1>It works</h1>')
})

app.get('/api/hello', (request, response) => {
  response.json({ message: 'Hello from Express' })
})

app.listen(process.env.PORT || 3000, '127.0.0.1')

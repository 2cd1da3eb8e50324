import Counter from './counter.jsx'

export default function Page() {
  return (
    <main>
      <h1>It works</h1>
      <Counter />
    </main>
  )
}

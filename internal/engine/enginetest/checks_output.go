package enginetest

import (
	"bytes"
	"fmt"
	"io"
	"runtime"
	"sort"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/enginetest/probe"
)

// mission: A1, A3, A4

var outputChecks = []check{
	{"output/streams apart", "standard output and standard error do not mix, and no byte is added", nil, checkStreams},
	{"output/merged", "both streams as one keep the order of a command's writes", nil, checkMerged},
	{"output/bytes", "output is passed on byte for byte", nil, checkBytes},
	{"output/100 MB",
		"a large output arrives whole and in order; a slow writer slows the command down, and memory stays bounded",
		nil, checkLarge},
	{"output/long line", "a line may be 32 MiB long", nil, checkLine},
	{"output/as it comes", "output arrives while the command still runs", nil, checkLive},
	{"output/failing writer", "a writer that fails stops delivery to it, not the command", nil, checkFailingWriter},
	{"output/nobody listens", "a command with nil writers runs to its end", nil, checkNilWriters},
	{"output/background child",
		"Wait does not wait for children that hold the pipes, and the command's own output is whole", nil,
		checkBackground},
	{"output/wait", "Wait may be called often and at the same time; a Wait that is given up does not end the command",
		nil, checkWait},
}

func checkStreams(t *testing.T, s *suite) {
	c := probe.Start(t, s.shared, probe.Sh(`echo out; echo err >&2; printf out2; printf err2 >&2`))
	c.Expect(t, engine.Exit{}, "out\nout2")
	if got := c.Stderr.String(); got != "err\nerr2" {
		t.Errorf("stderr %q", got)
	}
}

func checkMerged(t *testing.T, s *suite) {
	cmd := probe.Sh(`i=0; while [ $i -lt 200 ]; do echo o$i; echo e$i >&2; i=$((i+1)); done`)
	cmd.Merged = true
	var want strings.Builder
	for i := range 200 {
		fmt.Fprintf(&want, "o%d\ne%d\n", i, i)
	}
	c := probe.Start(t, s.shared, cmd)
	c.Expect(t, engine.Exit{}, want.String())
	if got := c.Stderr.String(); got != "" {
		t.Errorf("stderr %q", got)
	}
}

func checkBytes(t *testing.T, s *suite) {
	var format, want strings.Builder
	for b := range 256 {
		format.WriteString(`\` + strconv.FormatInt(int64(b)|0o1000, 8)[1:])
		want.WriteByte(byte(b))
	}
	probe.Start(t, s.shared, probe.Sh("printf '"+format.String()+"'")).Expect(t, engine.Exit{}, want.String())
}

// numbers is a writer for the output of `seq 1 n`. It compares the output with the expected one.
type numbers struct {
	next    int    // the number after those in pending
	pending []byte // expected bytes that have not arrived yet
	block   []byte // a thousand lines, of which pending is the rest
	prefix  []byte // common prefix of these lines, without the last three digits
	total   int64  // bytes that have arrived
	wrong   string // the first difference
	each    func(total int64)
}

func (n *numbers) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0 && n.wrong == ""; {
		if len(n.pending) == 0 {
			n.pending = n.more()
		}
		part := min(len(rest), len(n.pending))
		if !bytes.Equal(rest[:part], n.pending[:part]) {
			n.wrong = "after byte " + strconv.FormatInt(n.total,
				10) + " came " + strconv.Quote(string(rest[:min(part, 60)])) +
				" instead of " + strconv.Quote(string(n.pending[:min(part, 60)]))
		}
		n.total += int64(part)
		rest, n.pending = rest[part:], n.pending[part:]
	}
	if n.each != nil {
		n.each(n.total)
	}
	return len(p), nil
}

// more returns the next expected bytes. A thousand numbers differ from the previous thousand in the digits
// before the last three, usually in one digit. Only these digits are written, because the race detector checks
// each write.
func (n *numbers) more() []byte {
	first := n.next + 1
	if first < 1000 {
		n.next++
		return append(strconv.AppendInt(nil, int64(first), 10), '\n')
	}
	prefix := strconv.AppendInt(nil, int64(first/1000), 10)
	width := len(prefix) + len("000\n")
	if len(prefix) != len(n.prefix) {
		n.block = n.block[:0]
		for i := range 1000 {
			n.block = append(n.block, fmt.Sprintf("%s%03d\n", prefix, i)...)
		}
	} else {
		for at := range prefix {
			for i := 0; prefix[at] != n.prefix[at] && i < 1000; i++ {
				n.block[i*width+at] = prefix[at]
			}
		}
	}
	n.prefix = prefix
	n.next = first - first%1000 + 999
	return n.block[first%1000*width:]
}

// skip skips the first bytes as if they had arrived. It must be called before any bytes arrive.
func (n *numbers) skip(count int64) {
	n.next = sort.Search(seqLarge, func(i int) bool { return seqSize(i+1) > count })
	n.total = seqSize(n.next)
	n.pending = n.more()[count-n.total:]
	n.total = count
}

// seqSize returns the number of bytes that `seq 1 n` prints.
func seqSize(n int) (size int64) {
	for digits, first := 1, 1; first <= n; digits, first = digits+1, first*10 {
		size += int64(min(n, first*10-1)-first+1) * int64(digits+1)
	}
	return size
}

// seqLarge is the last number of a sequence of about 100 MB.
const seqLarge = 12_300_000

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func checkLarge(t *testing.T, s *suite) {
	dir := probe.NewDir(t, s.shared)
	before, most := heap(), uint64(0)
	open := make(chan struct{})
	measured := int64(0)
	n := &numbers{each: func(total int64) {
		<-open
		if total-measured > 16<<20 {
			measured, most = total, max(most, heap())
		}
	}}
	cmd := probe.Sh("seq 1 " + strconv.Itoa(seqLarge) + " && touch done")
	cmd.Dir, cmd.Stdout = dir, n
	c := probe.Start(t, s.shared, cmd)
	time.Sleep(time.Second) // enough for 100 MB, if nothing blocked them
	if got := probe.Script(t, s.shared, dir, "ls"); got != "" {
		t.Error("the command ended before its output was read")
	}
	most = max(most, heap())
	close(open)
	if exit := c.EndWithin(probe.PatientLarge(t), t); exit != (engine.Exit{}) {
		t.Fatalf("ended with %+v, stderr %.500q", exit, c.Stderr)
	}
	if n.wrong != "" || n.total != seqSize(seqLarge) {
		t.Errorf("%d of %d bytes came; %s", n.total, seqSize(seqLarge), n.wrong)
	}
	if most > before+64<<20 {
		t.Errorf("memory grew from %d to %d MiB", before>>20, most>>20)
	}
}

// count counts all bytes, and those that are not b.
type count struct {
	b            byte
	total, other int64
}

func (c *count) Write(p []byte) (int, error) {
	c.total += int64(len(p))
	c.other += int64(len(p) - bytes.Count(p, []byte{c.b}))
	return len(p), nil
}

func checkLine(t *testing.T, s *suite) {
	n := &count{b: 'x'}
	cmd := probe.Sh(`head -c 33554432 /dev/zero | tr '\0' x`)
	cmd.Stdout = n
	probe.Start(t, s.shared, cmd).Expect(t, engine.Exit{}, "")
	if n.total != 32<<20 || n.other != 0 {
		t.Errorf("%d bytes came, %d of them wrong; want %d", n.total, n.other, 32<<20)
	}
}

func checkLive(t *testing.T, s *suite) {
	r, w := io.Pipe()
	cmd := probe.Sh(`echo first; read line; echo "second $line"`)
	cmd.Stdin = r
	c := probe.Start(t, s.shared, cmd)
	c.Stdout.Until(t, "first\n") // the command waits for an answer before it continues
	if _, err := io.WriteString(w, "answer\n"); err != nil {
		t.Fatal(err)
	}
	w.Close()
	c.Expect(t, engine.Exit{}, "first\nsecond answer\n")
}

// brokenWriter fails at the first write.
type brokenWriter struct{ calls int }

func (b *brokenWriter) Write([]byte) (int, error) {
	b.calls++
	return 0, io.ErrClosedPipe
}

func checkFailingWriter(t *testing.T, s *suite) {
	w := &brokenWriter{}
	cmd := probe.Sh(`seq 1 200000; echo done >&2; exit 4`)
	cmd.Stdout = w
	c := probe.Start(t, s.shared, cmd)
	if exit := c.End(t); exit != (engine.Exit{Code: 4}) || c.Stderr.String() != "done\n" {
		t.Errorf("ended with %+v and stderr %q", exit, c.Stderr)
	}
	if w.calls != 1 {
		t.Errorf("the writer was called %d times, want once", w.calls)
	}
}

func checkNilWriters(t *testing.T, s *suite) {
	p, err := s.shared.Start(probe.Patient(t), probe.Sh(`seq 1 100000; seq 1 100000 >&2; exit 6`))
	if err != nil {
		t.Fatal(err)
	}
	if exit, err := p.Wait(probe.Patient(t)); err != nil || exit != (engine.Exit{Code: 6}) {
		t.Errorf("Wait: %+v, %v", exit, err)
	}
}

func checkBackground(t *testing.T, s *suite) {
	sleep := probe.Sleeper()
	for range 3 {
		// The slow writer ensures that the last output is still in transit when the command ends.
		n := &numbers{each: func(int64) { time.Sleep(time.Millisecond) }}
		cmd := probe.Sh(sleep + ` & exec seq 1 800000`)
		cmd.Stdout = n
		c := probe.Start(t, s.shared, cmd)
		c.Expect(t, engine.Exit{}, "")
		if n.wrong != "" || n.total != seqSize(800000) {
			t.Errorf("%d of %d bytes came; %s", n.total, seqSize(800000), n.wrong)
		}
		if err := c.Kill(probe.Patient(t)); err != nil {
			t.Fatalf("Kill: %v", err)
		}
	}
	c := probe.Start(t, s.shared, probe.Sh(sleep+` & seq 1 10; exit 7`))
	c.Expect(t, engine.Exit{Code: 7}, "1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n")
	if got := probe.Alive(t, s.shared, sleep); got != 1 {
		t.Errorf("%d background children are alive, want the one", got)
	}
	noisy := probe.Sleeper()
	c = probe.Start(t, s.shared, probe.Sh(`(while :; do echo noise; `+noisy+`; done) & echo mine; exit 8`))
	if exit := c.End(t); exit != (engine.Exit{Code: 8}) || !strings.Contains(c.Stdout.String(), "mine\n") {
		t.Errorf("ended with %+v and stdout %q", exit, c.Stdout)
	}
}

func checkWait(t *testing.T, s *suite) {
	r, w := io.Pipe()
	cmd := probe.Sh(`read line; exit 5`)
	cmd.Stdin = r
	c := probe.Start(t, s.shared, cmd)
	if _, err := c.Wait(soon(t, 50*time.Millisecond)); !errors.Is(err, errors.Timeout) {
		t.Errorf("a Wait with a time limit answered %v, want Timeout", err)
	}
	if _, err := c.Wait(canceled(t)); !errors.Is(err, errors.Canceled) {
		t.Errorf("a canceled Wait answered %v, want Canceled", err)
	}
	ends := make(chan engine.Exit, 3)
	for range cap(ends) {
		go func() {
			exit, err := c.Wait(probe.Patient(t))
			if err != nil {
				t.Errorf("Wait: %v", err)
			}
			ends <- exit
		}()
	}
	if _, err := io.WriteString(w, "go\n"); err != nil {
		t.Fatal(err)
	}
	for range cap(ends) {
		if exit := <-ends; exit != (engine.Exit{Code: 5}) {
			t.Errorf("one Wait answered %+v", exit)
		}
	}
	if exit := c.End(t); exit != (engine.Exit{Code: 5}) {
		t.Errorf("a later Wait answered %+v", exit)
	}
}

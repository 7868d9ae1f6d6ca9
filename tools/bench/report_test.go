package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// two returns a measure with Harvest and runc.
func two(ours, theirs []float64, failed int, aim *Aim) *Measure {
	return &Measure{Name: "start", Unit: "ms", Aim: aim, Series: []*Series{
		{Side: harvest, Values: ours, Failed: failed}, {Side: "runc", Values: theirs}}}
}

func TestAims(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		m       *Measure
		got     float64
		verdict string
	}{
		"met": {two([]float64{50}, []float64{20}, 0, &Aim{Peer: "runc", AtMost: 2.5}), 2.5, met},
		"missed": {two([]float64{51}, []float64{20}, 0, &Aim{Peer: "runc", AtMost: 2.5}),
			2.55, missed},
		"a failure misses": {two([]float64{10}, []float64{20}, 1, &Aim{Peer: "runc", AtMost: 2.5}), 0.5,
			missed},
		"all failed":               {two(nil, []float64{20}, 3, &Aim{AtMost: 2.5}), 0, missed},
		"peer failed":              {two([]float64{10}, nil, 0, &Aim{Peer: "runc", AtMost: 2.5}), 0, unknown},
		"peer missing":             {two([]float64{10}, []float64{20}, 0, &Aim{Peer: "crun", AtMost: 2.5}), 0, unknown},
		"ours failed without peer": {two(nil, nil, 2, &Aim{Peer: "runc", AtMost: 2.5}), 0, missed},
		"nothing measured":         {two(nil, nil, 0, &Aim{AtMost: 2.5}), 0, unknown},
		"absolute, met":            {two([]float64{7.9}, nil, 0, &Aim{AtMost: 8}), 7.9, met},
		"absolute, missed":         {two([]float64{8.1}, nil, 0, &Aim{AtMost: 8}), 8.1, missed},
		"at least, met":            {two([]float64{300}, nil, 0, &Aim{AtLeast: 300}), 300, met},
		"at least, missed":         {two([]float64{299}, nil, 0, &Aim{AtLeast: 300}), 299, missed},
		"nothing grew":             {two([]float64{0}, nil, 0, &Aim{AtMost: 32}), 0, met},
	} {
		c.m.finish()
		if a := c.m.Aim; a.Verdict != c.verdict || a.Got != c.got {
			t.Errorf("%s: got %v, %s; want %v, %s", name, a.Got, a.Verdict, c.got, c.verdict)
		}
	}
}

func TestRatioIsOfMedians(t *testing.T) {
	t.Parallel()
	m := two([]float64{30, 10, 1000}, []float64{20, 60, 1}, 0, nil)
	m.finish()
	if got := m.side("runc").Ratio; got != 1.5 {
		t.Errorf("ratio is %v, want 1.5", got)
	}
	if got := m.side(harvest).Ratio; got != 0 {
		t.Errorf("Harvest has a ratio of %v to itself", got)
	}
}

func example() *Report {
	row := &Row{ID: "P1", Work: "start", Measures: []*Measure{
		two([]float64{130.123, 120}, []float64{40, 42}, 1, &Aim{Peer: "runc", AtMost: 2.5}),
		{Name: "stage boot", Unit: "ms", Part: true, Series: []*Series{{Side: harvest, Values: []float64{60}}}},
		{Name: "start", Unit: "s", Series: []*Series{{Side: harvest, Values: []float64{}, Failed: 2,
			Errors: []string{"it broke"}}}, Aim: &Aim{Peer: "runc", AtMost: 2}},
	},
		Checks:  []Check{{Name: "all is gone", OK: true}, {Name: "it is told", Detail: "it was not"}},
		Missing: []Missing{{"bwrap", "not installed"}}, Notes: []string{"50 per GiB"}, Error: "stopped"}
	rep := &Report{Rows: []*Row{row}, Machine: Machine{Cores: 2, Load: []float64{1}}}
	rep.finish()
	return rep
}

func TestTable(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	if err := example().print(&b); err != nil {
		t.Fatal(err)
	}
	var table, rest []string
	for line := range strings.Lines(b.String()) {
		switch {
		case strings.HasPrefix(line, "|"):
			table = append(table, strings.TrimSuffix(line, "\n"))
		case strings.HasPrefix(line, "- "):
			rest = append(rest, strings.TrimSuffix(line, "\n"))
		}
	}
	want := []string{
		"| row | measure   | side    | n | failed | p50 | p95 | p99 | Harvest ÷ it | aim          |        |",
		"|-----|-----------|---------|---|--------|-----|-----|-----|--------------|--------------|--------|",
		"| P1  | start, ms | Harvest | 2 | 1      | 120 | 130 | 130 |              |              |        |",
		"| P1  | start, ms | runc    | 2 | 0      | 40  | 42  | 42  | 3            | ≤ 2.5 × runc | missed |",
		"| P1  | start, s  | Harvest | 0 | 2      | –   | –   | –   |              | ≤ 2 × runc   | missed |",
	}
	if diff := cmp.Diff(want, table); diff != "" {
		t.Errorf("the table differs (-want +got):\n%s", diff)
	}
	wantRest := []string{
		"- P1: of Harvest's time, p50 in ms: stage boot 60",
		"- P1: all is gone: ok",
		"- P1: it is told: NOT OK (it was not)",
		"- P1: bwrap is missing: not installed",
		"- P1: 50 per GiB",
		"- P1: start, Harvest: it broke",
		"- P1 was not finished: stopped",
	}
	if diff := cmp.Diff(wantRest, rest); diff != "" {
		t.Errorf("what follows the table differs (-want +got):\n%s", diff)
	}
}

func TestWriteAndRead(t *testing.T) {
	t.Parallel()
	rep := example()
	path := filepath.Join(t.TempDir(), "tmp", "last.json")
	if err := rep.write(path); err != nil {
		t.Fatal(err)
	}
	got, err := readReport(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(rep, got); diff != "" {
		t.Errorf("what is read differs (-written +read):\n%s", diff)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"values": [130.1,120]`, `"values": []`, `"verdict": "missed"`, `"failed": 2`,
		`"harvest_to_this": 3`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the file does not contain %s:\n%s", want, text)
		}
	}
	left, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(left) != 1 {
		t.Errorf("beside the result there is something else: %v, %v", left, err)
	}
}

func TestReadReportSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	bad := filepath.Join(t.TempDir(), "bad.json")
	if err := os.WriteFile(bad, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{bad: "decode the result", bad + "x": "read the result"} {
		if _, err := readReport(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error is %v, want one with %q", err, want)
		}
	}
}

func TestNumber(t *testing.T) {
	t.Parallel()
	for v, want := range map[float64]string{0: "0", 0.346: "0.35", 2.5: "2.5", 3: "3", 12.34: "12.3", 20: "20",
		99.99: "100", 100: "100", 1234.5: "1234"} {
		if got := number(v); got != want {
			t.Errorf("%v is printed as %s, want %s", v, got, want)
		}
	}
}

// TestCommittedResults checks that the committed results can be printed and do not name a private machine.
func TestCommittedResults(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("results/*.json")
	if err != nil {
		t.Fatal(err)
	}
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		rep, err := readReport(file)
		if err != nil {
			t.Error(err)
			continue
		}
		var b strings.Builder
		if err := rep.print(&b); err != nil {
			t.Error(err)
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, secret := range []string{"/home/", "/root/", "/tmp/", "/hvb"} {
			if strings.Contains(string(text), secret) {
				t.Errorf("%s contains the path %s", file, secret)
			}
		}
		if len(host) > 3 && strings.Contains(string(text), host) {
			t.Errorf("%s contains the name of this machine", file)
		}
		if rep.Short || len(rep.Rows) == 0 || rep.Machine.Cores == 0 {
			t.Errorf("%s is no whole result", file)
		}
	}
}

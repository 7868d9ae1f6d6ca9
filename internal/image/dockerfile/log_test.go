package dockerfile

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/image"
)

// TestBuildLogHidesEncodedSecrets checks that a secret is hidden in every usual encoding, as a whole and line by line:
// in titles of steps, in the progress, and in the output of commands and its last lines.
func TestBuildLogHidesEncodedSecrets(t *testing.T) {
	t.Parallel()
	const (
		secret = "s3cret/canary???+>>>value" // each base64 of it has both characters that differ in URLs
		lines  = "first???line>>>of+key\nsecond???line>>>of+key\n"
		short  = "a?b\nc>d\ne/f\ng+h\n" // lines that are too short to be hidden by themselves
	)
	std, raw := base64.StdEncoding, base64.RawURLEncoding
	encoded := map[string]string{
		"plain": secret, "URL": url.QueryEscape(secret), "path": url.PathEscape(secret),
		"hex": hex.EncodeToString([]byte(secret)), "HEX": strings.ToUpper(hex.EncodeToString([]byte(secret))),
		"a line": "second???line>>>of+key", "a line in hex": hex.EncodeToString([]byte("second???line>>>of+key")),
		"a line in a URL": url.QueryEscape("first???line>>>of+key"),
		"short lines":     std.EncodeToString([]byte(short)), "short lines in hex": hex.EncodeToString([]byte(short)),
		"short lines in a URL": url.QueryEscape(short), "a short secret": "x9y8",
	}
	for name, value := range map[string]string{"a secret": secret, "a line": "second???line>>>of+key", "lines": lines} {
		for offset := range 3 {
			before := "user:"[:3+offset]
			one, other := std.EncodeToString([]byte(before+value)), raw.EncodeToString([]byte(before+value))
			if strings.TrimRight(one, "=") == other {
				t.Fatalf("%s at %d is the same in both alphabets", name, offset)
			}
			encoded[fmt.Sprintf("%s in base64 at %d", name, offset)] = one
			encoded[fmt.Sprintf("%s in base64 for URLs at %d", name, offset)] = other
		}
	}
	var got []string
	l := newLog(image.BuildOptions{Log: func(line string) { got = append(got, line) },
		Progress: func(p image.Progress) { got = append(got, p.Message) },
		Secrets: map[string][]byte{"a": []byte(secret), "b": []byte(lines), "c": []byte(short),
			"d": []byte("x9y8")}}, 1)
	for name, form := range encoded {
		middle := form[max(0, len(form)/2-4):min(len(form), len(form)/2+4)]
		got = nil
		l.step("run", "before "+form+" after")
		out := l.output("")
		if _, err := out.Write([]byte("before " + form + " after\n")); err != nil {
			t.Fatal(err)
		}
		got = append(got, out.last())
		if len(got) != 4 {
			t.Errorf("%s: %q", name, got)
		}
		for _, text := range got {
			if strings.Contains(text, middle) || !strings.Contains(text, logf.Hidden) ||
				!strings.HasPrefix(text, "before ") || !strings.HasSuffix(text, " after") {
				t.Errorf("%s: %s", name, text)
			}
		}
	}
}

// TestBuildLogHidesWrappedSecrets checks that a long secret is hidden in the lines into which programs wrap an encoding
// of it.
func TestBuildLogHidesWrappedSecrets(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	for i := range 40 {
		fmt.Fprintf(&text, "%x-", i*i*7919)
	}
	for name, secret := range map[string]string{
		"a file with a newline": text.String() + "\n", "a value": text.String(),
	} {
		for how, form := range map[string]string{
			"base64": base64.StdEncoding.EncodeToString([]byte(secret)), "hex": hex.EncodeToString([]byte(secret))} {
			for _, width := range map[string][]int{"base64": {76, 64}, "hex": {60}}[how] {
				var got []string
				l := newLog(image.BuildOptions{Log: func(line string) { got = append(got, line) },
					Secrets: map[string][]byte{"s": []byte(secret)}}, 1)
				out := l.output("")
				lines := 0
				for line := range slices.Chunk([]byte(form), width) {
					if _, err := fmt.Fprintf(out, "%s\n", line); err != nil {
						t.Fatal(err)
					}
					lines++
				}
				for i, line := range got {
					if last := i == lines-1; !strings.Contains(line, logf.Hidden) && (!last || len(line) >= 8) {
						t.Errorf("%s in %s at %d: line %d is %q", name, how, width, i, line)
					}
				}
			}
		}
	}
}

// TestBuildLogHidesWholeSecrets checks that nothing remains of a secret that begins with another one.
func TestBuildLogHidesWholeSecrets(t *testing.T) {
	t.Parallel()
	secrets := map[string][]byte{}
	for i := range 20 {
		secrets[fmt.Sprint(i)] = []byte("canary" + strings.Repeat("x", i))
	}
	var got string
	o := image.BuildOptions{Log: func(line string) { got = line }, Progress: quiet.Progress, Secrets: secrets}
	l := newLog(o, 1)
	for name, value := range secrets {
		if l.step("run", "<"+string(value)+">"); got != "<"+logf.Hidden+">" {
			t.Errorf("secret %s: %s", name, got)
		}
	}
}

// TestStepsSayHowLong checks that the log has the duration of each step that took a while.
func TestStepsSayHowLong(t *testing.T) {
	t.Parallel()
	var got []string
	l := newLog(image.BuildOptions{Log: func(line string) { got = append(got, line) }}, 1)
	l.ended("[2/3] COPY a b", 400*time.Millisecond)
	l.ended("[3/3] RUN [ a ] b", 80*time.Second)
	if text := strings.Join(got, "\n"); text != "[3/3] done in 1m20s" {
		t.Errorf("the log: %s", text)
	}
}

// TestProgressBars checks that of a line that a command overwrites, the last version is kept.
func TestProgressBars(t *testing.T) {
	t.Parallel()
	var got []string
	l := newLog(image.BuildOptions{Log: func(line string) { got = append(got, line) }}, 1)
	out := l.output("[1/1] ")
	for _, text := range []string{"10%\r2", "0%\r30%\r", "\nend\r\n"} {
		if _, err := out.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if last, lines := out.last(), strings.Join(got, "; "); last != "30%\nend" || lines != "[1/1] 30%; [1/1] end" {
		t.Errorf("got %q and %q", last, lines)
	}
}

// TestRunsWithoutAgents checks that a RUN goes on without an SSH agent that it does not require, as in BuildKit, and
// that the log says so.
//
// mission: B2
func TestRunsWithoutAgents(t *testing.T) {
	t.Parallel()
	b := newBench(t, Options{})
	img := b.build(t, "FROM tiny\nRUN --mount=type=ssh,required=false --mount=type=ssh,id=b,target=/agent "+
		"test ! -e /agent && echo \"$SSH_AUTH_SOCK\" >/x\n", image.BuildOptions{})
	img.want(map[string]string{"/x": "/run/buildkit/ssh_agent.0\n", "/agent": "", "/run": ""})
	if log := strings.Join(b.log, "\n"); strings.Count(log, "the command runs without an SSH agent") != 1 {
		t.Errorf("the log:\n%s", log)
	}
}

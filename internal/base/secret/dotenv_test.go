package secret_test

import (
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/secret"
)

// mission: F4
func TestParseEnv(t *testing.T) {
	t.Parallel()
	text := "\ufeff# comment\r\n\r\nPLAIN=value\r\nexport EXPORTED = spaced  # comment\nHASH=a#b\nNONE=\nNOTHING= # " +
		"comment\n" +
		"DOLLAR=pa$$w${or}d\nSINGLE='as $it \\n \"is\"' # comment\nDOUBLE=\"a\\nb\\t\\\"q\\\" \\\\ \\$x \\d\"\n" +
		"MULTI=\"-----BEGIN-----\nline # no comment\n-----END-----\"\nLAST=1\nLAST=2=3"
	got, err := secret.ParseEnv(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"PLAIN": "value", "EXPORTED": "spaced", "HASH": "a#b", "NONE": "", "NOTHING": "", "DOLLAR": "pa$$w${or}d",
		"SINGLE": `as $it \n "is"`, "DOUBLE": "a\nb\t\"q\" \\ $x \\d",
		"MULTI": "-----BEGIN-----\nline # no comment\n-----END-----", "LAST": "2=3",
	}
	if diff := cmp.Diff(want, map[string]string(got)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestParseEnvRefuses(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"A=1\nhunter2\n":                           "line 2 of the variables: there is no '='",
		"A='x\ny'\nhunter2 hunter2=x":              "line 3 of the variables: the text before",
		"\n=hunter2":                               "line 2 of the variables: the text before",
		"A=\"hunter2\n":                            `line 1 of the variables: the closing " is missing`,
		"A='hunter2' hunter2":                      "line 1 of the variables: there is something behind the closing '",
		"A=hunter2\x00":                            "not text",
		"A=hunter2\xff":                            "not text",
		strings.Repeat("#\n", 1<<20) + "A=hunter2": "more than 2 MiB",
	} {
		_, err := secret.ParseEnv(strings.NewReader(text))
		wantError(t, err, errors.Invalid, want)
		if err != nil && strings.Contains(err.Error()+errors.RemedyOf(err), "hunter2") {
			t.Errorf("the error quotes the file: %v", err)
		}
	}
	if _, err := secret.ParseEnv(iotest.ErrReader(io.ErrUnexpectedEOF)); err == nil {
		t.Error("a broken reader is no error")
	}
}

func FuzzParseEnv(f *testing.F) {
	for _, seed := range []string{"A=1", "export A='x\ny' # z", "A=\"\\n\\", "=\n", "A='", "\ufeffA=\r\n",
		"A=1\x00", " A = # x"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := secret.ParseEnv(strings.NewReader(text))
		if (err == nil) == (p == nil) {
			t.Errorf("%q: %v, %v", text, p, err)
		}
		// A parsed value, written in single quotes, parses to the same value.
		for key, value := range p {
			if strings.ContainsAny(value, "'\r") {
				continue
			}
			again, err := secret.ParseEnv(strings.NewReader(key + "='" + value + "'"))
			if err != nil || again[key] != value {
				t.Errorf("%s=%q became %q, %v", key, value, again[key], err)
			}
		}
	})
}

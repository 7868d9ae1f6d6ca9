package web_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/web"
)

// TestVendor checks that the libraries match the list, unchanged, and that each has its licence.
func TestVendor(t *testing.T) {
	t.Parallel()
	list, err := os.ReadFile("vendor/CHECKSUMS")
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{"CHECKSUMS": true}
	for line := range strings.Lines(string(list)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		row := strings.Fields(line)
		if len(row) != 6 {
			t.Fatalf("%q", line)
		}
		file, ok := web.Open("vendor/" + row[0])
		if sum := sha256.Sum256(file.Data); !ok || hex.EncodeToString(sum[:]) != row[5] {
			t.Errorf("%s is not what was vendored", row[0])
		}
		licence := strings.TrimSuffix(row[0], filepath.Ext(row[0])) + ".LICENSE"
		if _, ok := web.Open("vendor/" + licence); !ok {
			t.Errorf("%s has no licence", row[0])
		}
		listed[row[0]], listed[licence] = true, true
	}
	all, err := os.ReadDir("vendor")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range all {
		if !listed[file.Name()] {
			t.Errorf("vendor/%s is not in the list", file.Name())
		}
	}
}

// mostLines is the number of lines that a file of the page stays below.
const mostLines = 400

// TestPlainFiles checks that the page is plain files without a build step. Our own files are small, refer to each other
// by relative addresses, and contain nothing inline.
// mission: 7.9
func TestPlainFiles(t *testing.T) {
	t.Parallel()
	names, err := filepath.Glob("*.*")
	if err != nil {
		t.Fatal(err)
	}
	address := regexp.MustCompile(`(?:src|href|from|import)\s*[=(]?\s*["'](/[^"']*|https?://[^"']*)["']`)
	inline := regexp.MustCompile(`(?i)\sstyle\s*=|\son\w+\s*=\s*"|<style|<script[^>]*>[^<]`)
	size := 0
	for _, name := range names {
		if filepath.Ext(name) == ".go" {
			continue
		}
		file, ok := web.Open(name)
		if !ok {
			t.Errorf("%s is not in the binary", name)
		}
		size += len(file.Data)
		if n := bytes.Count(file.Data, []byte("\n")); n >= mostLines {
			t.Errorf("%s has %d lines; move a part to a file of its own", name, n)
		}
		if m := address.Find(file.Data); m != nil {
			t.Errorf("%s: %s works at the root of a host only", name, m)
		}
		if m := inline.Find(file.Data); m != nil && filepath.Ext(name) == ".html" {
			t.Errorf("%s: %s", name, m)
		}
		for _, sink := range []string{"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(",
			"new Function"} {
			if bytes.Contains(file.Data, []byte(sink)) {
				t.Errorf("%s uses %s", name, sink)
			}
		}
	}
	if size > 320_000 {
		t.Errorf("%d bytes of our own", size)
	}
}

func TestOpen(t *testing.T) {
	t.Parallel()
	page, ok := web.Open(web.Index)
	if !ok || page.Type != "text/html; charset=utf-8" || len(page.Tag) != 26 {
		t.Errorf("%q %q", page.Type, page.Tag)
	}
	if again, _ := web.Open(web.Index); again.Tag != page.Tag {
		t.Errorf("%q", again.Tag)
	}
	if list, ok := web.Open("vendor/CHECKSUMS"); !ok || list.Type != "text/plain; charset=utf-8" {
		t.Errorf("%q", list.Type)
	}
	at := regexp.MustCompile(`"ui/(v-\w+/)app\.js"`).FindSubmatch(page.Data)
	if at == nil {
		t.Fatalf("the page is\n%s", page.Data)
	}
	plain, _ := web.Open("app.js")
	if file, ok := web.Open(string(at[1]) + "app.js"); !ok || !file.Fixed || file.Tag != plain.Tag || plain.Fixed {
		t.Errorf("with the version it is %v %v %q", ok, file.Fixed, file.Tag)
	}
	if file, ok := web.Open("v-other/app.js"); !ok || file.Fixed || file.Tag != plain.Tag {
		t.Errorf("with another version it is %v %v %q", ok, file.Fixed, file.Tag)
	}
	for _, name := range []string{"", "v-", "v-other", "vendor", "../web.go", "web.go", "nosuch.js"} {
		if _, ok := web.Open(name); ok {
			t.Errorf("%q is there", name)
		}
	}
}

// TestFirstView checks that the page itself names all files of its first view, so that browsers request them at once,
// and that these are few: neither the libraries nor the conversation.
// mission: F2
func TestFirstView(t *testing.T) {
	t.Parallel()
	page, _ := web.Open(web.Index)
	imports := regexp.MustCompile(`(?m)^(?:import|export) .* from '\./([^']+)'`)
	known := []string{"app.js"}
	size := 0
	for i := 0; i < len(known); i++ {
		file, ok := web.Open(known[i])
		if !ok || !bytes.Contains(page.Data, []byte("/"+known[i]+`"`)) {
			t.Errorf("%s is needed, and the page does not name it", known[i])
		}
		size += len(file.Data)
		for _, m := range imports.FindAllSubmatch(file.Data, -1) {
			if name := string(m[1]); !slices.Contains(known, name) {
				known = append(known, name)
			}
		}
	}
	if n := bytes.Count(page.Data, []byte(".js")); n != len(known) {
		t.Errorf("the page names %d scripts, and needs %q", n, known)
	}
	if size > 55_000 {
		t.Errorf("the first view needs %d bytes of %q", size, known)
	}
}

// sharedClasses are the classes that several modules use, for the same thing in each.
var sharedClasses = []string{
	"button", "charts", "chip", "choice", "danger", "grid", "hint", "inline", "meta", "panel", "primary", "row",
	"scroll", "small", "spinner", "sr", "time", "top", "unsent", "what", "wide",
}

// TestClasses checks that a class means one thing: only shared classes are in several modules, and a class with a name
// from data begins with a prefix of its own, so that a view or list cannot get the style of something else.
// mission: 7.9
func TestClasses(t *testing.T) {
	t.Parallel()
	names, err := filepath.Glob("*.js")
	if err != nil {
		t.Fatal(err)
	}
	literal := regexp.MustCompile("class: (?:'([^']*)'|`([^`]*)`)|classList\\.(?:add|toggle|remove)\\('([^']*)'")
	hole := regexp.MustCompile(`\$\{[^}]*\}`)
	modules := map[string][]string{} // of a class
	for _, name := range names {
		file, _ := web.Open(name)
		for _, m := range literal.FindAllSubmatch(file.Data, -1) {
			for _, class := range strings.Fields(hole.ReplaceAllString(string(m[1])+string(m[2])+string(m[3]), "*")) {
				if strings.Contains(class, "*") && !regexp.MustCompile(`^[a-z]+-\*$`).MatchString(class) {
					t.Errorf("%s: the class %q needs a constant prefix", name, class)
				}
				if !slices.Contains(modules[class], name) {
					modules[class] = append(modules[class], name)
				}
			}
		}
	}
	for class, in := range modules {
		if shared := slices.Contains(sharedClasses, class); shared != (len(in) > 1) && !strings.HasSuffix(class, "-*") {
			t.Errorf("the class %q is in %q, shared: %v", class, in, shared)
		}
	}
	prefixes := []string{"of", "hljs"}
	for class := range modules {
		if prefix, _, found := strings.Cut(class, "-"); found && slices.Contains(prefixes, prefix) &&
			!strings.HasSuffix(class, "-*") {
			t.Errorf("the class %q collides with those of the prefix %q", class, prefix)
		}
	}
}

// boundedSpreads are the spreads of arrays over arguments, by module: each array is short, or the server bounds it.
var boundedSpreads = map[string]int{
	"api.js": 1, "dom.js": 1, "doctor.js": 1, "files.js": 2, "new.js": 1, "startup.js": 2,
	"network.js": 1, "terminal.js": 2, "shell.js": 1, "usage.js": 1,
}

// spreads returns the calls that spread an array over their arguments, up to the array.
func spreads(text string) (found []string) {
	calls := regexp.MustCompile(`\.(?:after|append|before|prepend|push|replaceChildren|replaceWith|unshift)\(`)
	for _, at := range calls.FindAllStringIndex(text, -1) {
		depth := 0
		for i := at[1]; i < len(text) && depth >= 0; i++ {
			switch text[i] {
			case '(', '[', '{':
				depth++
			case ')', ']', '}':
				depth--
			case '\'', '"', '`':
				if end := strings.IndexByte(text[i+1:], text[i]); end >= 0 {
					i += end + 1
				}
			case '.':
				if depth == 0 && strings.HasPrefix(text[i:], "...") {
					found = append(found, text[at[0]:i+3])
					i += 2
				}
			}
		}
	}
	return found
}

// TestSpreadsAreFound checks spreads.
func TestSpreadsAreFound(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{
		"a.append(...b)": 1, "a.append(h('p', null, 'x'), ...b)": 1, "a.push(f(...b), [...c], {...d})": 0,
		"a.append(h(')'), \"(\", ...b, ...c)": 2, "a.fill(...b)": 0, "a.push(b); c(...d)": 0,
	} {
		if got := spreads(text); len(got) != want {
			t.Errorf("%s has %q, want %d", text, got, want)
		}
	}
}

// TestSpreads checks that no array of unbounded length is spread over the arguments of a call, for which engines have
// limits.
func TestSpreads(t *testing.T) {
	t.Parallel()
	names, err := filepath.Glob("*.js")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		file, _ := web.Open(name)
		if found := spreads(string(file.Data)); len(found) != boundedSpreads[name] {
			t.Errorf("%s has %d spreads, %d are known to be short: %q; use fill or add of dom.js for others", name,
				len(found), boundedSpreads[name], found)
		}
	}
}

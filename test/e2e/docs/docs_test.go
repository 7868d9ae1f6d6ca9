// Package docs runs the commands that the pages of the documentation show.
package docs

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/image/imagetest"
	"github.com/RelevanceAI/harvest/test/host"
	"github.com/RelevanceAI/harvest/test/stubs/s3test"
)

func TestMain(m *testing.M) { os.Exit(s3test.M{M: m}.Run()) }

const root = "../../.."

// TestPages runs the commands of each page of the documentation, in order, in one shell with a fresh data directory. A
// page or a command that cannot be run here needs a row in the table pages, with the reason.
// mission: F1
func TestPages(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, file := range append(files, filepath.Join(root, "README.md")) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		name := filepath.Base(file)
		if filepath.Dir(file) == root || name != "README.md" {
			seen[name] = true
		}
		commands, err := commandsOf(string(text))
		if err != nil {
			t.Errorf("%s: %s", name, errors.Message(err))
		}
		p, known := pages[name]
		switch {
		case len(commands) == 0:
			continue
		case !known:
			t.Errorf("%s has commands, and no row in the table pages", name)
			continue
		}
		t.Run(name, func(t *testing.T) {
			if p.all != "" {
				t.Skip(p.all)
			}
			if !p.quick {
				testenv.Long(t)
			}
			t.Parallel()
			run(t, p, commands)
		})
	}
	for name := range pages {
		if !seen[name] {
			t.Errorf("the table pages has %s, which does not exist", name)
		}
	}
}

// unused returns the rows of a page by their commands.
func unused(p page) map[string]bool {
	rows := map[string]bool{}
	for _, table := range []map[string]string{p.not, p.until} {
		for key := range table {
			rows[key] = true
		}
	}
	for key := range p.code {
		rows[key] = true
	}
	return rows
}

// run runs the commands of a page.
func run(t *testing.T, p page, commands []command) {
	h := host.New(t, "gvisor", host.GVisor(t))
	ownLibrary(t, h)
	listen, modal := "127.0.0.1:"+testenv.FreePort(t), "127.0.0.1:"+testenv.FreePort(t)
	h.Env.Setenv("HARVEST_SERVER_LISTEN", listen)
	h.Env.Setenv("HARVEST_AGENTS_DEFAULT", "scripted") // the agent without a model
	h.Env.Setenv("HARVEST_AGENTS_IMAGE", "base")
	f := &fixture{t: t, h: h, dir: h.Project(), as: map[string]string{
		"127.0.0.1:7777": listen, "127.0.0.1:7783": modal, "SESSION": `"$(harvest sessions --all -o name | head -1)"`}}
	if p.setup != nil {
		p.setup(f)
	}
	rows := unused(p)
	var script strings.Builder
	script.WriteString(prelude)
	var ran []command
	for _, c := range append(before(f.before), commands...) {
		key := c.key()
		delete(rows, key)
		if why, ok := p.not[key]; ok {
			t.Logf("line %d: %s: not run: %s", c.line, key, why)
			continue
		}
		text := c.text
		for from, to := range f.as {
			text = strings.ReplaceAll(text, from, to)
		}
		kind := "once"
		if server.MatchString(key) {
			kind = "server"
		} else if _, ok := p.until[key]; ok {
			kind = "interrupted"
		}
		fmt.Fprintf(&script, "%s %d %s\n", kind, len(ran), quoted(text))
		ran = append(ran, c)
	}
	for key := range rows {
		t.Errorf("the row %q fits no command of the page", key)
	}
	script.WriteString("finish\n")
	check(t, h, p, ran, shell(t, h, f.dir, script.String()))
}

// server matches the commands that run a server in the foreground.
var server = regexp.MustCompile(`^([A-Z0-9_]+=\S+ )*harvest up\b`)

func before(texts []string) []command {
	var all []command
	for _, text := range texts {
		all = append(all, command{text: text})
	}
	return all
}

func quoted(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// prelude has the functions that run the commands of a page, as a reader types them. A server in the foreground runs
// as in another terminal, and the next command waits until it listens. A command that ends only when it is interrupted
// gets a SIGINT.
const prelude = `
begin() { printf '\n@@begin %d\n' "$1"; }
end() { printf '\n@@end %d %d\n' "$1" "$2"; }
once() { begin "$1"; eval "$2"; end "$1" $?; }
interrupted() { begin "$1"; timeout --foreground -s INT 10 bash -c "exec $2"; end "$1" $?; }
server() {
	begin "$1"
	case "$2" in *'&'*) text=$2 ;; *) text="${2%%#*} &" ;; esac
	: >"$UP_LOG"
	eval "$text" >>"$UP_LOG" 2>&1
	while ! grep -q 'listens on' "$UP_LOG"; do
		if ! kill -0 $! 2>/dev/null; then cat "$UP_LOG"; end "$1" 1; return; fi
		sleep 0.1
	done
	end "$1" 0
}
finish() {
	unset HARVEST_URL HARVEST_API_KEY
	harvest down -q
	for job in $(jobs -p); do kill "$job" 2>/dev/null; done
	wait
}
`

// shell runs a script and returns its output.
func shell(t *testing.T, h *host.Host, dir, script string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	file := filepath.Join(t.TempDir(), "script")
	testenv.WriteFile(t, file, []byte(script))
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, testenv.RequireTool(t, "bash", "bash"), file)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &out, &out
	cmd.Env = append(slices.Clone(h.Env.Vars), "UP_LOG="+filepath.Join(t.TempDir(), "up.log"), "TMPDIR="+t.TempDir())
	cmd.WaitDelay = time.Minute
	if err := cmd.Run(); err != nil {
		t.Errorf("the shell: %v", err)
	}
	return out.String()
}

var (
	ended = regexp.MustCompile(`(?s)\n@@begin (\d+)\n(.*?)\n@@end \d+ (\d+)\n`)
	id    = regexp.MustCompile(`\b(sbx|ses|img)_[0-9a-z]+`)
)

// check reports the commands that failed, or did not print the output that the page shows.
func check(t *testing.T, h *host.Host, p page, ran []command, out string) {
	t.Helper()
	failed := false
	results := ended.FindAllStringSubmatch(out, -1)
	if len(results) != len(ran) {
		t.Errorf("%d of %d commands have ended:\n%s", len(results), len(ran), out)
		failed = true
	}
	for i, m := range results[:min(len(results), len(ran))] {
		c := ran[i]
		want := strconv.Itoa(p.code[c.key()])
		if _, ok := p.until[c.key()]; ok {
			want = "124" // of timeout
		}
		if m[3] != want {
			t.Errorf("line %d: %s\nexit code %s, want %s:\n%s", c.line, c.text, m[3], want, m[2])
			failed = true
		}
		shown := id.ReplaceAllString(m[2], "$1")
		for _, line := range c.out {
			if !strings.Contains("\n"+shown+"\n", "\n"+id.ReplaceAllString(line, "$1")+"\n") {
				t.Errorf("line %d: %s\nprints\n%s\nwithout the line %q", c.line, c.text, m[2], line)
			}
		}
	}
	if failed {
		t.Logf("the log of the servers:\n%s", h.Log())
	}
}

// ownLibrary gives the host a library of images with the base image, because the pages add images and remove them.
func ownLibrary(t *testing.T, h *host.Host) {
	t.Helper()
	library := imagetest.Library(t)
	base := filepath.Dir(library.Root(imagetest.Base(t, library)))
	images := filepath.Join(h.Data, "images")
	if err := errors.Join(os.Remove(images), os.MkdirAll(images, 0o700)); err != nil {
		t.Fatal(err)
	}
	host.ShareImage(t, base, images, "base")
}

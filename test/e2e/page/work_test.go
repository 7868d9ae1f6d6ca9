package page

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host"
	"github.com/RelevanceAI/harvest/test/stubs/modeltest"
)

// pullsAPI is the part of GitHub's REST API that opens pull requests, for callers with the token. The first one is
// refused.
type pullsAPI struct {
	token  string
	mu     sync.Mutex
	opened []map[string]any // guarded by mu
}

func (p *pullsAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var answer any = map[string]any{"message": "Not Found"}
	status := http.StatusNotFound
	var asked map[string]any
	switch {
	case r.Header.Get("Authorization") != "Bearer "+p.token:
		answer, status = map[string]any{"message": "Bad credentials"}, http.StatusUnauthorized
	case r.Method == http.MethodGet && r.URL.Path == "/repos/owner/sample":
		answer, status = map[string]any{"default_branch": "main"}, http.StatusOK
	case r.Method == http.MethodGet && r.URL.Path == "/repos/owner/sample/pulls":
		answer, status = []any{}, http.StatusOK
	case r.Method == http.MethodPost && r.URL.Path == "/repos/owner/sample/pulls" &&
		json.NewDecoder(r.Body).Decode(&asked) == nil:
		p.opened = append(p.opened, asked)
		answer, status = map[string]any{"message": "Resource not accessible by personal access token"},
			http.StatusForbidden
		if len(p.opened) > 1 {
			answer, status = map[string]any{"number": 12, "html_url": "https://github.example/owner/sample/pull/12",
				"draft": true}, http.StatusCreated
		}
	}
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(answer)
}

// TestPageRepository checks that the image of a repository is built while its log is read. A session that begins with
// it reports how far it was behind, reaches a denied target once a person allows it, and hands its work back as a pull
// request.
// mission: F2, B4, A6, E8
func TestPageRepository(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	testenv.Root(t)
	const token = "ghp_PAGE5c21"
	h := host.New(t, "gvisor", host.GVisor(t))
	h.Up()
	pulls := &pullsAPI{token: token}
	github := httptest.NewServer(pulls)
	t.Cleanup(github.Close)
	g := host.NewGit(t, token)
	_, port, _ := strings.Cut(strings.TrimPrefix(g.Server.URL, "http://"), ":")
	h.Must("secret", "set", "git", "GIT_HOST=10.0.2.2:"+port, "GIT_PASSWORD="+token, "GITHUB_API_URL="+github.URL)
	h.Must("secret", "set", "build", "GIT_TOKEN="+token)
	const recipe = `{"install": "echo installed >installed", "build": "echo the first line; sleep 40; echo the last line"}`
	g.Commit("owner/sample", map[string]string{"harvest.json": recipe, "README.md": "one\n"})
	host.RunGit(t, g.Dir, "-C", filepath.Join(g.Dir, "owner", "sample.git"), "config", "http.receivepack", "true")
	if said, code := g.Add(h, "owner/sample", "--image", "base", "--secret", "build"); code != 0 {
		t.Fatalf("exit code %d: %s", code, said)
	}
	b := browser(t)
	b.signedIn(h)

	g.Commit("owner/sample", map[string]string{"README.md": "two\n"})
	b.do(chromedp.Evaluate(`location.hash = '#/images'`, nil))
	b.sees(".of-images td", "owner/sample")
	// The log of the build before is there, too.
	b.do(chromedp.Evaluate(`window.told = (line) => (document.querySelector('.build')?.textContent ?? '').split('\n').filter((l) => l === line).length;
		new MutationObserver(() => { if (told('the first line') === 2 && told('the last line') === 1) window.live = true; }).observe(document.body, { childList: true, subtree: true, characterData: true })`, nil))
	b.click(".of-images button", "Build")
	b.until(`told('the last line') === 2 && document.querySelector('.build').textContent.trimEnd().endsWith('── succeeded')`)
	if b.value(`window.live`) != "true" {
		t.Error("the log came only when the build had ended")
	}
	b.until(`document.querySelectorAll('[aria-label=Builds] tbody tr').length >= 2`)
	b.accessible("a build")
	b.picture("build")

	g.Commit("owner/sample", map[string]string{"README.md": "three\n"})
	b.do(chromedp.Evaluate(`location.hash = '#/'`, nil))
	b.sees("button", "Create a sandbox")
	b.do(chromedp.Evaluate(`document.querySelector('.new details').open = true`, nil))
	b.fill("Repository", g.URL("owner/sample"))
	b.fill("Network", "allow")
	b.fill("Allowed hosts", strings.TrimPrefix(g.Server.URL, "http://"))
	b.creates()
	b.sees(".note", "commit behind")
	session := b.value(`location.hash`)
	b.do(chromedp.Evaluate(`location.hash = '#/images'`, nil))
	b.sees(".behind", "1")
	b.do(chromedp.Evaluate(`location.hash = `+quoted(session), nil))
	b.sees(".note", "commit behind")

	pageAllows(b)

	b.send("/write plan.md Look first.")
	b.sees(".status", "Done")
	b.view("Changes")
	b.sees(".of-changes .diff .added", "Look first.")
	b.click(".of-changes button", "Pull request")
	b.fill("Title", "A first attempt")
	b.fill("Text", "It looks.")
	b.click("dialog button", "Open it")
	b.sees("dialog .problem", "Resource not accessible")
	b.accessible("a refused pull request")
	if got := b.value(`[...document.querySelectorAll('dialog input[type=text], dialog textarea')]
		.map((e) => e.value)`); got != "A first attempt,It looks." {
		t.Errorf("after the refusal, the dialog has %q", got)
	}
	b.fill("Title", "Look first")
	b.click("dialog button", "Open it")
	b.sees(".of-changes [role=status]", "Opened https://github.example/owner/sample/pull/12")
	if got := b.value(`document.querySelector('.of-changes [role=status] a').rel`); got != "noopener noreferrer" {
		t.Errorf("the link is %s", got)
	}
	pulls.mu.Lock()
	defer pulls.mu.Unlock()
	if last := pulls.opened[len(pulls.opened)-1]; last["title"] != "Look first" ||
		!strings.HasPrefix(last["body"].(string), "It looks.") || last["base"] != "main" || last["draft"] != true ||
		!strings.HasPrefix(last["head"].(string), "harvest/") {
		t.Errorf("GitHub was asked for %v", last)
	}
	if branches := host.RunGit(b.t, filepath.Join(g.Dir, "owner", "sample.git"), "branch", "--list",
		"harvest/*"); branches == "" {
		t.Error("nothing was pushed")
	}
	if text := b.value(`document.documentElement.outerHTML`); strings.Contains(text, token) {
		t.Error("the page has the token")
	}
	b.clean()
	b.leavesNoImages()
}

// pageAllows tries to reach a server, is refused, is allowed to by a click, and reaches it.
func pageAllows(b *tab) {
	b.t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_,
			_ = io.WriteString(w, "reached at last")
	}))
	b.t.Cleanup(server.Close)
	_, port, _ := strings.Cut(strings.TrimPrefix(server.URL, "http://"), ":")
	try := `/run python3 -c 'import urllib.request as u; print(u.urlopen("http://10.0.2.2:` + port + `/", timeout=20).read().decode())'`
	b.send(try)
	b.sees(".tool.failed .state", "exit")
	b.view("Network")
	b.sees(".of-network .list", port)
	b.click(".of-network td button", "Allow")
	b.sees(".of-network td", "allowed now")
	b.send(try)
	b.sees(".tool .output", "reached at last")
}

// pageSyncs uploads a volume to S3, first as a dry run, and shows the conflict of a two-way sync.
func pageSyncs(b *tab, h *host.Host, s3 *host.S3) {
	b.t.Helper()
	b.do(chromedp.Evaluate(`location.hash = '#/volumes'`, nil))
	b.sees(".of-volumes td", "notes")
	b.press("Sync notes")
	b.fill("Bucket", s3.Bucket)
	b.fill("Prefix", "copy")
	copied := filepath.Join(s3.Dir, "copy", "n.txt")
	b.click("dialog button", "Sync")
	b.sees("dialog td", "n.txt")
	if _, err := os.Stat(copied); err == nil {
		b.t.Error("what was only to be said was done")
	}
	b.do(chromedp.Evaluate(`document.querySelector('dialog [type=checkbox]').click()`, nil))
	b.click("dialog button", "Sync")
	b.until(`document.querySelector('dialog [role=status]').textContent.includes(': 1 files, ')`)
	b.accessible("a sync")
	b.picture("sync")
	if data, err := os.ReadFile(copied); string(data) != "noted\n" {
		b.t.Errorf("the bucket has %q, %v", data, err)
	}
	b.fill("Direction", "down")
	b.click("dialog button", "Sync")
	b.sees("dialog [role=status]", "1 unchanged")

	edit := func(volume string) {
		b.t.Helper()
		file := filepath.Join(b.t.TempDir(), "n.txt")
		if err := os.WriteFile(file, []byte("edited in "+volume+"\n"), 0o600); err != nil {
			b.t.Fatal(err)
		}
		h.Must("volume", "cp", file, volume+":/n.txt")
	}
	h.Must("volume", "create", "other")
	h.Must("volume", "sync", "other", "s3://"+s3.Bucket+"/copy", "--both")
	edit("other")
	h.Must("volume", "sync", "other", "s3://"+s3.Bucket+"/copy", "--both")
	edit("notes")
	b.fill("Direction", "both")
	b.click("dialog button", "Sync")
	b.sees("dialog h3", "Conflicts")
	b.sees("dialog td", "n.txt.conflict-")
	b.accessible("conflicts")
	b.picture("conflicts")
	b.click("dialog button", "Close")
}

// TestPageOwnPrompt checks that a prompt of Harvest itself, which asks the agent for the text of a pull request, is a
// remark in the conversation: live, after a reload, and in the past of a session that continues it. It is no message of
// the person, and is not offered for sending again. An event that cannot be shown stops none of this.
// mission: E8, 7.5, 7.10
func TestPageOwnPrompt(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	const token = "ghp_OWN41c7e"
	stub := modeltest.New(t, host.ModelKey)
	// The stub answers Harvest's request, which names no script, with the last step.
	stub.Script("work", modeltest.Step{Call: "Bash",
		Input: map[string]any{"command": "echo a >a && git add a && git commit -qm 'Add a'", "description": "work"}},
		modeltest.Step{Say: "Add the file a\n\nThe file a."})
	h := host.NewCLI(t, stub)
	root := h.Up()
	pulls := &pullsAPI{token: token, opened: []map[string]any{{}}} // the first one would be refused
	github := httptest.NewServer(pulls)
	t.Cleanup(github.Close)
	g := host.NewGit(t, token)
	address := strings.TrimPrefix(g.Server.URL, "http://")
	_, port, _ := strings.Cut(address, ":")
	h.Must("secret", "set", "git", "GIT_HOST=10.0.2.2:"+port, "GIT_PASSWORD="+token, "GITHUB_API_URL="+github.URL)
	g.Commit("owner/sample", map[string]string{"README.md": "one\n"})
	host.RunGit(t, g.Dir, "-C", filepath.Join(g.Dir, "owner", "sample.git"), "config", "http.receivepack", "true")
	events := make(chan string)
	through := saying(t, root, events)
	b := browser(t) // it ends before the proxy of its streams
	b.signIn(strings.Replace(h.Must("key", "link"), root, through, 1))
	b.sees("button", "Create a sandbox")
	b.do(chromedp.Evaluate(`document.querySelector('.new details').open = true`, nil))
	b.fill("Repository", g.URL("owner/sample"))
	b.fill("Network", "allow")
	b.fill("Allowed hosts", address)
	b.fill("First prompt", "[work] on it.")
	first := b.creates()
	b.sees(".message.agent", "Add the file a")
	b.sees(".status", "Done")
	b.view("Changes")
	b.sees(".of-changes .diff .added", "a")
	b.click(".of-changes button", "Pull request")
	b.click("dialog button", "Open it") // without a text
	b.sees(".of-changes [role=status]", "Opened https://github.example/owner/sample/pull/12")
	b.view("Conversation")

	const asks = `[...document.querySelectorAll('.items .note')].map((e) => e.textContent)
		.filter((text) => text.startsWith('Harvest ask')).join()`
	const people = `[...document.querySelectorAll('.items .message.user, .queue li')].map((e) => e.textContent).join()`
	shows := func(when string) {
		t.Helper()
		b.until(asks + ` === 'Harvest asks the agent for the text of a pull request.'`)
		if n := b.value(`document.querySelectorAll('.items .message.agent').length`); n != "2" {
			t.Errorf("%s: %s texts of the agent", when, n)
		}
		if got := b.value(people); got != "[work] on it." {
			t.Errorf("%s: the prompts of the person are %q", when, got)
		}
		if got := b.value(`document.title`); !strings.HasSuffix(got, "[work] on it. · Harvest") {
			t.Errorf("%s: the session is called %q", when, got)
		}
	}
	shows("live")
	b.do(chromedp.Reload())
	shows("after a reload")

	// The server's events of such a turn that fails, and one without its data.
	const message = `"message":{"id":"msg_x","purpose":"pull_request","prompt":"This request"}`
	for _, e := range []string{"repo.synced\ndata: {}", "message.queued\ndata: {" + message + "}",
		"done\ndata: {\"failed\":true,\"text\":\"out of luck\"," + message + "}"} {
		events <- "event: " + e + "\n\n"
	}
	b.sees(".note", "An event (repo.synced) could not be shown")
	b.sees(".note", "The agent wrote no text: out of luck")
	if got := b.value(`[...document.querySelectorAll('button')].filter((e) => e.textContent === 'Send it again').length + ' '
		+ document.querySelectorAll('.queue li').length`); got != "0 0" {
		t.Errorf("offered for sending again, and waiting: %s", got)
	}

	b.click(".top button", "End")
	b.confirmsEnd()
	b.click(".ended .resume", "Continue with its files")
	b.until(`location.hash.startsWith('#/s/ses_') && !location.hash.includes(` + quoted(first) + `)`)
	b.sees(".start", "Sandbox ready in")
	for _, when := range []string{"in the past", "in the past, after a reload"} {
		b.sees(".note", "Continued: the new session starts here")
		shows(when)
		b.do(chromedp.Reload())
	}
	b.sees(".note", "Continued: the new session starts here")
	b.clean()
	b.leavesNoImages()
}

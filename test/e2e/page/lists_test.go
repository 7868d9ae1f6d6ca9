package page

import (
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host"
	"github.com/RelevanceAI/harvest/test/stubs/s3test"
)

// TestPageLists checks that the lists and the actions on their rows agree with the command line.
// mission: F2, F4, F8, A12
func TestPageLists(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	testenv.Root(t)
	h := host.New(t, "gvisor", host.GVisor(t))
	h.Up()
	b := browser(t)
	b.signedIn(h)
	b.creates()
	b.send("/say something to list")
	b.sees(".message.agent", "something to list")
	list := func(id string) {
		t.Helper()
		b.do(chromedp.Evaluate(`location.hash = '#/`+id+`'`, nil))
		b.until(`document.querySelector('.list-view.of-` + id + `') && !document.querySelector('.list-view').textContent.includes('Loading…')`)
	}
	checked := func(name string) {
		t.Helper()
		b.accessible(name)
		b.picture(name)
	}

	list("secrets")
	b.fill("Secret", "anthropic")
	b.fill("Variable", "OTHER_KEY")
	b.fill("Value", "s3cr3t-value")
	b.fill("Only for the host", "github")
	b.click(".of-secrets button", "Set")
	b.sees(".of-secrets .chip", "OTHER_KEY")
	b.sees(".of-secrets td", "github.com, api.github.com")
	b.sees(".of-secrets td", "not logged in")
	checked("secrets")
	b.click(".of-secrets button", "Hosts")
	b.until(`document.querySelector('dialog textarea').value.includes('\napi.github.com bearer\n')`)
	b.fill("Hosts", "*.example.org header X-Key")
	b.click("dialog button", "Save")
	b.sees(".of-secrets td", "*.example.org")
	if got := h.Must("secret", "ls", "-o", "json"); !strings.Contains(got, `"inject": "header X-Key"`) {
		t.Errorf("the secret is bound to %s", got)
	}
	b.click(".of-secrets button", "Log in")
	b.sees("dialog a", "Open the page of the provider")
	b.accessible("a login")
	b.picture("login")
	b.click("dialog button", "Cancel")
	if text := b.value(`document.documentElement.outerHTML`); strings.Contains(text, "s3cr3t-value") {
		t.Error("the page has a secret's value")
	}
	if got := h.Must("secret", "ls", "-o", "name"); got != "anthropic" {
		t.Errorf("the secrets are %q", got)
	}
	b.click(".of-secrets button", "Delete")
	b.click("dialog button", "Delete it")
	b.sees(".of-secrets", "There is no secret.")

	list("keys")
	b.fill("New key", "deploy")
	b.click(".of-keys button", "Create")
	b.sees(".of-keys .secret", "hv_")
	key := b.value(`document.querySelector('.secret').textContent`)
	checked("keys")
	b.click(".of-keys button", "I have it")
	b.do(chromedp.Reload())
	b.sees(".of-keys td", "deploy")
	if text := b.value(`document.documentElement.outerHTML`); strings.Contains(text, key) {
		t.Error("the key is shown again")
	}
	b.press("Revoke deploy")
	b.click("dialog button", "Revoke it")
	b.until(`![...document.querySelectorAll('.of-keys td')].some((e) => e.textContent === 'deploy')`)
	if got := h.Must("key", "ls"); strings.Contains(got, "deploy") {
		t.Errorf("the keys are %s", got)
	}

	list("volumes")
	b.fill("New volume", "<img src=x onerror=window.pwned=1>")
	b.click(".of-volumes button", "Create")
	b.sees(".of-volumes .problem", "name")
	b.fill("New volume", "models")
	b.click(".of-volumes button", "Create")
	b.sees(".of-volumes td", "models")
	checked("volumes")
	b.press("Sync models")
	b.click("dialog button", "Sync")
	b.sees("dialog .problem", "")
	b.click("dialog button", "Close")
	b.press("Delete models")
	b.click("dialog button", "Delete it")
	b.until(`![...document.querySelectorAll('.of-volumes td')].some((e) => e.textContent === 'models')`)

	list("schedules")
	b.sees(".of-schedules td", "events-prune")
	b.click(`.of-schedules [aria-label="Run now: events-prune"]`, "Run now")
	b.sees(".of-schedules td", "succeeded")
	checked("schedules")

	list("images")
	b.sees(".of-images td", "base")
	b.fill("Register a repository", "https://example.org/a/b.git")
	b.click(".of-images button", "Register")
	b.sees(".of-images td", "a/b")
	b.click(".of-images button", "Log")
	b.sees(".of-images h3", "Builds of a/b")
	checked("images")

	list("sessions")
	b.sees(".of-sessions td a", "something to list")
	checked("sessions")
	list("costs")
	b.until(`document.querySelector('.of-costs canvas')`)
	checked("costs")
	list("audit")
	b.sees(".of-audit code", "DELETE /v1/volumes/models")
	checked("audit")
	list("doctor")
	b.sees(".findings .ok", "machine")
	checked("doctor")

	// The clock of the browser may differ from that of the server, to which all times refer.
	b.do(chromedp.Evaluate(`{ const real = Date.now; Date.now = () => real() + 10 * 3600e3; }`, nil))
	const expires = `return Date.parse((await (await fetch('v1/sandboxes')).json()).data[0].expires_at)`
	b.run(`window.before = await (async () => { ` + expires + ` })()`)
	list("sandboxes")
	b.until(`document.querySelector('.of-sandboxes td time')`)
	if got := b.value(`document.querySelector('.of-sandboxes td time').textContent`); strings.Contains(got, "h ago") {
		t.Errorf("the sandbox was created %s", got)
	}
	b.click(".of-sandboxes button", "Extend by an hour")
	testenv.Eventually(t, "the sandbox lives an hour longer", func() bool {
		return b.run(`const hours = (await (async () => { `+expires+` })() - window.before) / 3600e3;
			return hours > 0.99 && hours < 1.5`) == "true"
	})
	b.click(".of-sandboxes button", "Snapshot")
	b.until(`![...document.querySelectorAll('.of-sandboxes button')].some((e) => e.disabled)`)
	checked("sandboxes")
	b.click(`.of-sandboxes button.danger`, "End")
	b.click("dialog button", "End it")
	b.sees(".of-sandboxes", "There is no sandbox.")
	b.do(chromedp.Evaluate(`document.querySelector('.of-sandboxes input').click()`, nil))
	b.sees(".of-sandboxes td", "terminated")
	b.clean()
	b.leavesNoImages()
}

// TestPageUnsentVolume checks that deleting a volume with files that are not yet in S3 needs a second confirmation.
// mission: F2, D3
func TestPageUnsentVolume(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	s3 := host.NewS3(t)
	h := host.New(t, "fake", nil)
	h.Env.Setenv("HARVEST_S3_ENDPOINT", "http://"+s3.Address)
	h.Env.Setenv("HARVEST_S3_PATH_STYLE", "true")
	h.Up()
	h.Must("secret", "set", "aws", "AWS_ACCESS_KEY_ID="+s3test.AccessKey, "AWS_SECRET_ACCESS_KEY="+s3test.SecretKey,
		"AWS_REGION=us-east-1")
	h.Must("sandbox", "create", "--name", "box", "--s3", "s3://"+s3.Bucket+"/work:/data:sync")
	volume := h.Sandbox("box").S3.Volume
	s3.Stop()
	h.Must("sandbox", "rm", "box")
	b := browser(t)
	b.signedIn(h)
	b.do(chromedp.Evaluate(`location.hash = '#/volumes'`, nil))
	b.sees(".of-volumes td", volume)
	remove := `document.querySelector('[aria-label="Delete ` + volume + `"]').click()`
	b.do(chromedp.Evaluate(remove, nil))
	b.click("dialog button", "Delete it")
	b.sees("dialog h2", "anyway?")
	b.accessible("deleting an unsent volume")
	b.picture("unsent-volume")
	b.click("dialog button", "Keep it")
	if got := h.Must("volume", "ls", "-o", "name"); got != volume {
		t.Errorf("the volumes are %q", got)
	}
	b.until(`!document.querySelector('dialog[open]')`)
	b.do(chromedp.Evaluate(remove, nil))
	b.click("dialog button", "Delete it")
	b.click("dialog button", "Delete it")
	b.sees(".of-volumes", "There is no volume.")
	if got := h.Must("volume", "ls", "-o", "name"); got != "" {
		t.Errorf("the volumes are %q", got)
	}
}

package page

import (
	"encoding/json"
	"fmt"
	"html"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/RelevanceAI/harvest/test/host"
)

// TestConsentPage has a real browser allow a client of OAuth: with a key, with the browser's sign-in, and from a page
// of another site, whose requests have no cookie. The browser follows the redirect to the client, and the page of
// another site cannot submit the form.
func TestConsentPage(t *testing.T) {
	t.Parallel()
	h := host.New(t, "gvisor", host.GVisor(t))
	base := h.Up()
	var ask string // the page of the server
	mux := http.NewServeMux()
	mux.HandleFunc("/cb", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "<title>cb</title><p id=got>%s</p>", html.EscapeString(r.URL.Query().Get("code")+
			r.URL.Query().Get("error")))
	})
	mux.HandleFunc("/start", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `<title>app</title><a id=go href="%s">Sign in</a>`, html.EscapeString(ask))
	})
	mux.HandleFunc("/forge", func(w http.ResponseWriter, _ *http.Request) {
		parsed, _ := url.Parse(ask)
		fields := ""
		for name, all := range parsed.Query() {
			fields += fmt.Sprintf(`<input name="%s" value="%s">`, name, html.EscapeString(all[0]))
		}
		fmt.Fprintf(w, `<title>app</title><form method=post action="%s/oauth/authorize">%s<button id=go name=decision
			value=allow>Play</button></form>`, base, fields)
	})
	app := httptest.NewServer(mux)
	defer app.Close()
	elsewhere := strings.Replace(app.URL, "127.0.0.1", "localhost", 1)
	resp, err := http.Post(base+"/oauth/register", "application/json", strings.NewReader(
		`{"client_name":"<img src=x onerror=alert(1)> App","redirect_uris":["`+app.URL+`/cb"]}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var client struct {
		ID string `json:"client_id"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&client); err != nil {
		t.Fatal(err)
	}
	ask = base + "/oauth/authorize?" + url.Values{"response_type": {"code"}, "client_id": {client.ID},
		"redirect_uri": {app.URL + "/cb"}, "code_challenge": {strings.Repeat("a", 43)},
		"code_challenge_method": {"S256"}, "state": {`"><script>alert(1)</script>`}}.Encode()
	b := browser(t)
	gets := func(what string) {
		t.Helper()
		b.until(`document.title === 'cb'`)
		if got := b.value(`document.querySelector('#got').textContent`); (len(got) != 52) == (what == "code") ||
			what != "code" && got != what {
			t.Errorf("the client gets %q, want %s", got, what)
		}
	}

	b.do(chromedp.Navigate(ask))
	b.sees("h1", "<img src=x onerror=alert(1)> App")
	b.sees("p", "a program on this computer ("+strings.TrimPrefix(app.URL, "http://")+")")
	b.accessible("consent with a key")
	b.do(chromedp.SendKeys("#key", "hv_wrong", chromedp.ByQuery))
	b.loads("#allow")
	b.sees("[role=alert]", "The key is not valid")
	b.do(chromedp.SendKeys("#key", h.Must("key", "create", "laptop", "--quiet"), chromedp.ByQuery))
	b.loads("#allow")
	gets("code")

	b.signIn(h.Must("key", "link"))
	b.sees("button", "Create a sandbox")
	b.do(chromedp.Navigate(ask))
	b.sees("b", "personal")
	b.accessible("consent with a sign-in")
	b.loads("#allow")
	gets("code")
	b.do(chromedp.Navigate(ask))
	b.loads("button.other")
	gets("access_denied")

	b.do(chromedp.Navigate(elsewhere + "/start"))
	b.loads("#go")
	b.sees("label", "Your API key")
	b.loads("#again")
	b.sees("b", "personal")
	b.loads("#allow")
	gets("code")

	b.do(chromedp.Navigate(elsewhere + "/forge"))
	b.loads("#go")
	b.sees("h1", "the request comes from a page of another site")
	b.harmless()
}

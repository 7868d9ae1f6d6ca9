package credentials

import (
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
)

// TestPerTurn checks that a session with credentials per turn can use them in each turn, also in one after a restart of
// the server, and that neither a program which its agent left behind nor another command can use them after the turn.
//
// mission: 9.1
func TestPerTurn(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	const check = `curl -s -o /dev/null -w '%{http_code}\n' -H "Authorization: Bearer $API_TOKEN" ` +
		"https://" + apiHost + "/v1/check"
	for _, isolation := range isolations {
		w := newWorld(t)
		w.set("api", "API_TOKEN", apiToken, "--hosts", apiHost)
		args := []string{"agent", "--agent", "scripted", "--repo", "none", "--image", "clients",
			"--isolation", isolation, "--secret", "api", "--credentials", "turn", "--network", "default"}
		for i := range hosts {
			args = append(args, "--network", "allow="+address(i))
		}
		w.Must(append(args, "/run setsid sh -c 'while sleep 0.2; do "+strings.ReplaceAll(check, "'", `"`)+
			" >>/tmp/left; done' >/dev/null 2>&1 </dev/null &\n/run "+check+" >/tmp/turns")...)
		id, box := w.Session(), w.Box()
		after := func(turns string) {
			t.Helper()
			if got := w.sh(t, box, "cat /tmp/turns"); got != turns {
				t.Errorf("%s: the agent got %q, want %q\n%s", isolation, got, turns, w.Log())
			}
			if got := w.sh(t, box, check); got != "403" {
				t.Errorf("%s: another command got %s after the turn", isolation, got)
			}
			testenv.Eventually(t, "the program that was left behind is refused", func() bool {
				return strings.HasSuffix(w.sh(t, box, "cat /tmp/left"), "403")
			})
		}
		after("200")
		w.Must("send", id, "/run "+check+" >>/tmp/turns")
		after("200\n200")
		w.Kill()
		after("200\n200")
		w.Must("send", id, "/run "+check+" >>/tmp/turns")
		after("200\n200\n200")
	}
}

package inbox_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/event"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/session/inbox"
	"github.com/RelevanceAI/harvest/internal/store"
	"github.com/RelevanceAI/harvest/internal/store/testdb"
)

func TestMain(m *testing.M) {
	logf.Setup(io.Discard, 0, false)
	os.Exit(m.Run())
}

// desk is a Box on a database that outlives it.
type desk struct {
	t       *testing.T
	db      *store.DB
	journal *event.Journal
	*inbox.Box
}

func newDesk(t *testing.T, receivers ...inbox.Receiver) *desk {
	t.Helper()
	d := &desk{t: t, db: testdb.Open(t)}
	d.open(receivers...)
	t.Cleanup(func() { d.close() })
	return d
}

func (d *desk) open(receivers ...inbox.Receiver) {
	d.t.Helper()
	d.journal = event.Open(context.Background(), event.Options{Store: d.db.Events()})
	var err error
	d.Box, err = inbox.Open(d.t.Context(), inbox.Options{Store: d.db.Inbox(), Journal: d.journal,
		Receivers: receivers, Pause: time.Millisecond})
	if err != nil {
		d.t.Fatal(err)
	}
}

func (d *desk) close() {
	d.t.Helper()
	d.Box.Close()
	if err := d.journal.Close(context.Background()); err != nil {
		d.t.Error(err)
	}
}

func (d *desk) add(item inbox.Item) {
	d.t.Helper()
	if item.Account == "" {
		item.Account = "acme"
	}
	if err := d.Add(d.t.Context(), item); err != nil {
		d.t.Fatal(err)
	}
}

// items returns the items of an account in words, the oldest first.
func (d *desk) items(account string) []string {
	d.t.Helper()
	found, err := d.Items(d.t.Context(), account, inbox.Filter{})
	if err != nil {
		d.t.Fatal(err)
	}
	words := []string{}
	for _, i := range slices.Backward(found) {
		text := fmt.Sprintf("%d %s %s %s %s", i.Number, i.Kind, i.What, i.State, i.Answer)
		words = append(words, strings.TrimSpace(text))
	}
	return words
}

func (d *desk) want(account string, want ...string) {
	d.t.Helper()
	if diff := cmp.Diff(want, d.items(account), cmpopts.EquateEmpty()); diff != "" {
		d.t.Errorf("the inbox of %s (-want +got):\n%s", account, diff)
	}
}

// events returns the events of an account's inbox in words.
func (d *desk) events(account string) []string {
	d.t.Helper()
	reader, err := d.journal.Subscribe(d.t.Context(), inbox.Stream(account), 0)
	if err != nil {
		d.t.Fatal(err)
	}
	defer reader.Close()
	last, err := d.journal.Last(d.t.Context(), inbox.Stream(account))
	if err != nil {
		d.t.Fatal(err)
	}
	words := []string{}
	for int64(len(words)) < last {
		batch, err := reader.Next(d.t.Context())
		if err != nil {
			d.t.Fatal(err)
		}
		for _, e := range batch {
			var item inbox.Item
			if err := json.Unmarshal(e.Data, &item); err != nil {
				d.t.Fatal(err)
			}
			words = append(words, fmt.Sprintf("%s %d %s", e.Type, item.Number, item.State))
		}
	}
	return words
}

func question(key, what string) inbox.Item {
	return inbox.Item{Kind: inbox.Question, Key: key, What: what, QuestionID: key}
}

func TestOpenReplacesTheQuestionsOfASession(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	set := func(session string, answers map[string]string, items ...inbox.Item) {
		t.Helper()
		if err := d.Open(t.Context(), "acme", session, items, answers); err != nil {
			t.Fatal(err)
		}
	}
	a, b := question("a", "A?"), question("b", "B?")
	set("ses_1", nil, a, b)
	set("ses_2", nil, question("a", "of another session"))
	d.add(inbox.Item{Session: "ses_1", Kind: inbox.Finished, Key: "f", What: "done"})
	set("ses_1", map[string]string{"a": "denied: no"}, b)
	d.want("acme", "1 question A? answered denied: no", "2 question B? waiting",
		"3 question of another session waiting", "4 finished done waiting")
	set("ses_1", nil)
	set("ses_1", nil, b) // the next server reads old output: a closed question stays closed
	d.want("acme", "1 question A? answered denied: no", "2 question B? withdrawn",
		"3 question of another session waiting", "4 finished done waiting")
	want := []string{"inbox.added 1 waiting", "inbox.added 2 waiting", "inbox.added 3 waiting",
		"inbox.added 4 waiting", "inbox.closed 1 answered", "inbox.closed 2 withdrawn"}
	if diff := cmp.Diff(want, d.events("acme")); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

func TestSee(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	fill := func() {
		t.Helper()
		key := fmt.Sprint(len(d.items("acme")))
		d.add(inbox.Item{Session: "ses_1", Kind: inbox.Finished, Key: "f" + key, What: "one"})
		d.add(inbox.Item{Session: "ses_2", Kind: inbox.Silent, Key: "s" + key, What: "two"})
		d.add(inbox.Item{Session: "ses_1", Kind: inbox.Approval, Key: "a" + key, What: "three"})
		d.add(inbox.Item{Kind: inbox.Login, Key: "l" + key, What: "four", Secret: "login"})
	}
	fill()
	d.add(inbox.Item{Account: "other", Session: "ses_1", Kind: inbox.Finished, Key: "f", What: "theirs"})
	see := func(s inbox.Selection) error { return d.See(t.Context(), "acme", s) }
	for what, c := range map[string]struct {
		s    inbox.Selection
		kind errors.Kind
	}{
		"a number that does not exist":  {inbox.Selection{Numbers: []int64{1, 9}}, errors.NotFound},
		"a number of an open approval":  {inbox.Selection{Numbers: []int64{1, 3}}, errors.Conflict},
		"a number that is not positive": {inbox.Selection{Numbers: []int64{0}}, errors.NotFound},
	} {
		if err := see(c.s); !errors.Is(err, c.kind) || errors.RemedyOf(err) == "" {
			t.Errorf("%s: %v", what, err)
		}
	}
	d.want("acme", "1 finished one waiting", "2 silent two waiting", "3 approval three waiting", "4 login four waiting")
	for _, s := range []inbox.Selection{{Numbers: []int64{1}}, {Numbers: []int64{1}}, {Session: "ses_2"},
		{Secret: "another"}, {Secret: "login"}} {
		if err := see(s); err != nil {
			t.Fatal(err)
		}
	}
	d.want("acme", "1 finished one seen", "2 silent two seen", "3 approval three waiting", "4 login four seen")
	fill()
	if err := see(inbox.Selection{All: true}); err != nil {
		t.Fatal(err)
	}
	d.want("acme", "1 finished one seen", "2 silent two seen", "3 approval three waiting", "4 login four seen",
		"5 finished one seen", "6 silent two seen", "7 approval three waiting", "8 login four seen")
	d.want("other", "1 finished theirs waiting")
}

func TestRetainWithdrawsWhatEndedSessionsAsked(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	for _, session := range []string{"ses_live", "ses_ended"} {
		d.add(inbox.Item{Session: session, Kind: inbox.Approval, Key: "a", What: session})
		d.add(inbox.Item{Session: session, Kind: inbox.Finished, Key: "f", What: session})
	}
	d.add(inbox.Item{Kind: inbox.Login, Key: "l", What: "login"})
	if err := d.Retain(t.Context(), func(s string) bool { return s == "ses_live" }); err != nil {
		t.Fatal(err)
	}
	d.want("acme", "1 approval ses_live waiting", "2 finished ses_live waiting", "3 approval ses_ended withdrawn",
		"4 finished ses_ended waiting", "5 login login waiting")
}

func TestTextsAreShortAndWithoutSecrets(t *testing.T) {
	t.Parallel()
	const secret = "inbox-canary-55e1"
	defer logf.Redact(secret)()
	d := newDesk(t)
	d.add(inbox.Item{Kind: inbox.Approval, Key: "short", What: "\n Bash: " + secret + "\nmore", Tool: "Bash",
		Input: []byte(`{"command":"` + secret + `"}`)})
	d.add(inbox.Item{Kind: inbox.Approval, Key: "long", What: strings.Repeat("é", 10_000), Tool: "Write",
		Input: []byte(`"` + strings.Repeat("x", 1<<20) + `"`), Text: "plan"})
	found, err := d.Items(t.Context(), "acme", inbox.Filter{})
	if err != nil {
		t.Fatal(err)
	}
	long, short := found[0], found[1]
	if short.What != "Bash: [redacted] …" || short.Cut || strings.Contains(string(short.Input), secret) {
		t.Errorf("%+v", short)
	}
	if len(long.What) > 400 || !long.Cut || long.Input != nil || long.Text != "" || long.Tool != "Write" {
		t.Errorf("%+v", long)
	}
}

// mailbox is a receiver that fails while broken is set.
type mailbox struct {
	mu     sync.Mutex
	kinds  []inbox.Kind
	broken error
	got    []string
	tries  int
}

func (m *mailbox) Wants(i inbox.Item) bool { return slices.Contains(m.kinds, i.Kind) }

func (m *mailbox) Send(_ context.Context, i inbox.Item) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.tries++; m.broken != nil {
		return m.broken
	}
	m.got = append(m.got, i.What)
	return nil
}

func (m *mailbox) set(broken error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.broken, m.tries = broken, 0
}

func (m *mailbox) state() (got string, tries int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return strings.Join(m.got, " "), m.tries
}

func (m *mailbox) await(t *testing.T, want string) {
	t.Helper()
	testenv.Eventually(t, "the items "+want, func() bool { got, _ := m.state(); return got == want })
}

func TestReceiversGetEachItemInOrderAlsoAfterARestart(t *testing.T) {
	t.Parallel()
	all := &mailbox{kinds: inbox.Kinds}
	some := &mailbox{kinds: []inbox.Kind{inbox.Question}}
	d := newDesk(t, all, some)
	d.add(inbox.Item{Kind: inbox.Finished, Key: "1", What: "one"})
	d.add(inbox.Item{Kind: inbox.Question, Key: "2", What: "two"})
	all.await(t, "one two")
	some.await(t, "two")
	all.set(errors.Newf(errors.Unavailable, "down"))
	d.add(inbox.Item{Kind: inbox.Finished, Key: "3", What: "three", Session: "ses_3"})
	d.add(inbox.Item{Kind: inbox.Question, Key: "4", What: "four"})
	d.add(inbox.Item{Kind: inbox.Finished, Key: "5", What: "five"})
	some.await(t, "two four")
	testenv.Eventually(t, "more attempts", func() bool { _, tries := all.state(); return tries > 2 })
	d.close()
	if err := func() error { // a person has seen it before it could be sent
		d.open()
		defer d.close()
		return d.See(t.Context(), "acme", inbox.Selection{Session: "ses_3"})
	}(); err != nil {
		t.Fatal(err)
	}
	all.set(nil)
	d.open(all, some)
	all.await(t, "one two four five")
	d.close()
	d.open(all, some) // for Cleanup; nothing is sent twice
	d.add(inbox.Item{Kind: inbox.Question, Key: "6", What: "six"})
	all.await(t, "one two four five six")
	some.await(t, "two four six")
}

func TestReceiversDoNotGetRefusedItemsAgain(t *testing.T) {
	t.Parallel()
	m := &mailbox{kinds: inbox.Kinds}
	d := newDesk(t, m)
	m.set(errors.Newf(errors.Invalid, "not this one"))
	d.add(inbox.Item{Kind: inbox.Finished, Key: "1", What: "one"})
	testenv.Eventually(t, "an attempt", func() bool { _, tries := m.state(); return tries > 0 })
	testenv.Eventually(t, "the end of the attempts", func() bool {
		due, err := d.db.Inbox().DueItems(t.Context(), -1)
		return err == nil && len(due) == 0
	})
	m.set(errors.Newf(errors.Unavailable, "down"))
	d.add(inbox.Item{Kind: inbox.Finished, Key: "2", What: "two", Since: time.Now().Add(-25 * time.Hour)})
	testenv.Eventually(t, "the end of the attempts", func() bool {
		due, err := d.db.Inbox().DueItems(t.Context(), -1)
		_, tries := m.state()
		return err == nil && len(due) == 0 && tries > 0
	})
	m.set(nil)
	d.add(inbox.Item{Kind: inbox.Finished, Key: "3", What: "three"})
	m.await(t, "three")
}

// TestEventsAreNotLost checks that the next server publishes the events that a crashed one could not.
func TestEventsAreNotLost(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.add(inbox.Item{Kind: inbox.Finished, Key: "1", What: "one"})
	crashed := inbox.Item{ID: "inb_2", Account: "acme", Kind: inbox.Finished, Key: "2", What: "two",
		State: inbox.Waiting, Since: time.Now(), Due: 1}
	if _, added, err := d.db.Inbox().AddItem(t.Context(), crashed, 10); err != nil || !added {
		t.Fatal(added, err)
	}
	for range 2 {
		d.close()
		d.open()
	}
	want := []string{"inbox.added 1 waiting", "inbox.added 2 waiting"}
	if diff := cmp.Diff(want, d.events("acme")); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

func TestNoBox(t *testing.T) {
	t.Parallel()
	var b *inbox.Box
	for what, err := range map[string]error{
		"Add": b.Add(t.Context(), inbox.Item{}), "Open": b.Open(t.Context(), "a", "s", nil, nil),
		"Retain": b.Retain(t.Context(), nil), "See": b.See(t.Context(), "a", inbox.Selection{All: true}),
	} {
		if err != nil {
			t.Errorf("%s of a nil Box: %v", what, err)
		}
	}
}

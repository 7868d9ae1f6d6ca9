package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host"
)

// manyTurns names the variable with the number of turns of TestSessionOfManyTurns. 200 turns correspond to two hours,
// with a restart for every ten.
const manyTurns = "HARVEST_TEST_TURNS"

// overTime names the variable that spreads these turns over a time ("2h"), in which the server ends every minute,
// alternately killed and stopped.
const overTime = "HARVEST_TEST_OVER"

// prompt of a turn: a command that takes a while, a file, a text, and a line in a file that all turns share.
func soakPrompt(n int, takes time.Duration) string {
	return fmt.Sprintf("/run echo begin %d; sleep %.1f; echo end %d\n/write turns/%d.txt this is turn %d\n/say I "+
		"have done what turn %d wants\nremember %d", n, takes.Seconds(), n, n, n, n, n)
}

// TestSessionOfManyTurns checks that a session of many turns, whose server is killed again and again in the middle of
// them, loses and repeats no event, and has all of the agent's work. Turns follow one another at once, so that two
// hours take minutes, unless a time is given.
//
// mission: E3, E4, A8
func TestSessionOfManyTurns(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	turns, kills := 20, 3
	if n, err := strconv.Atoi(os.Getenv(manyTurns)); err == nil {
		turns, kills = n, n/10
	}
	over, takes := time.Duration(0), 200*time.Millisecond
	if d, err := time.ParseDuration(os.Getenv(overTime)); err == nil {
		over, takes, kills = d, d/time.Duration(turns)*6/10, 0
	}
	h := host.New(t, "gvisor", host.GVisor(t))
	begun := time.Now()
	h.Must("agent", "--agent", "scripted", "--repo", "none", "-d", soakPrompt(0, takes))
	id := h.Session()
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour+2*over)
	defer cancel()
	live := make(chan []host.TurnEvent, 1)
	go func() { live <- turnsOf(h, ctx, id, turns) }()
	for n := 1; n < turns; n++ {
		h.Must("send", "-d", id, soakPrompt(n, takes))
		if over > 0 {
			for until := begun.Add(over / time.Duration(turns) * time.Duration(n)); time.Now().Before(until); {
				minute := begun.Add(time.Duration(kills+1) * time.Minute)
				if until.Before(minute) {
					time.Sleep(time.Until(until))
					break
				}
				time.Sleep(time.Until(minute))
				endServer(h, kills%2 == 0)
				kills++
			}
		} else if n%(turns/kills) == 1 {
			time.Sleep(time.Duration(n*37%450) * time.Millisecond) // anywhere in the turn, or before it
			endServer(h, true)
		}
		if n%4 != 0 { // every fourth waits in the queue
			awaitTurns(h, ctx, id, n)
		}
	}
	seen := <-live
	took := time.Since(begun)
	again := turnsOf(h, ctx, id, turns)
	if len(seen) != len(again) {
		t.Errorf("who followed has seen %d events, there are %d", len(seen), len(again))
	}
	for i := range min(len(seen), len(again)) {
		if seen[i].ID != int64(i+1) || again[i].ID != int64(i+1) || seen[i].Type != again[i].Type {
			t.Fatalf("event %d is %d %s for who followed, and %d %s afterwards", i+1, seen[i].ID, seen[i].Type,
				again[i].ID, again[i].Type)
		}
	}
	checkSoak(t, again, turns)
	want, lines := "", ""
	for n := range turns {
		want += fmt.Sprintf("this is turn %d\n", n)
		lines += fmt.Sprintf("- remember %d\n", n)
	}
	if got := h.Must("sandbox", "exec", h.Box(), "--", "sh", "-c",
		`cd /workspace/work; for n in $(seq 0 `+fmt.Sprint(turns-1)+
			`); do cat turns/$n.txt; done; cat SCRIPTED-AGENT.md`); got+"\n" != want+lines {
		t.Errorf("the files have %s", got)
	}
	var list []api.Session
	if err := json.Unmarshal([]byte(h.Must("sessions", "-o", "json")), &list); err != nil || len(list) != 1 ||
		list[0].Turns != turns || list[0].Status != "done" {
		t.Errorf("%+v, %v", list, err)
	}
	t.Logf("%d turns, %d ends of the server, %d events in %s", turns, kills, len(again), took.Round(time.Second))
}

// turnsOf returns the events of a session up to the end of so many turns.
func turnsOf(h *host.Host, ctx context.Context, id string, turns int) (all []host.TurnEvent) {
	c := client.New(h.Data)
	defer c.Close()
	for e, err := range c.Events(ctx, client.Follow{Stream: id}) {
		if err != nil {
			h.T.Errorf("after %d events: %v", len(all), err)
			return all
		}
		found := host.TurnEvent{ID: e.ID, Type: e.Type}
		if err := json.Unmarshal(e.Data, &found.Data); err != nil {
			h.T.Error(err)
		}
		all = append(all, found)
		if e.Type == "done" {
			if turns--; turns == 0 {
				return all
			}
		}
	}
	return all
}

// endServer kills or stops the server, and has the next one started.
func endServer(h *host.Host, kill bool) {
	h.T.Helper()
	if !kill {
		h.Must("down")
	} else if err := syscall.Kill(h.Server().PID, syscall.SIGKILL); err != nil {
		h.T.Fatal(err)
	}
	h.Must("sessions")
}

// awaitTurns waits until so many turns have ended.
func awaitTurns(h *host.Host, ctx context.Context, id string, turns int) {
	h.T.Helper()
	if all := turnsOf(h, ctx, id, turns); len(all) == 0 || all[len(all)-1].Type != "done" {
		h.T.Fatalf("%d turns have not ended\n%s", turns, h.Log())
	}
}

// checkSoak looks at the events of all turns.
func checkSoak(t *testing.T, events []host.TurnEvent, turns int) {
	t.Helper()
	counts, pieces, whole := map[string]int{}, map[string]string{}, map[string]string{}
	var queued, sent, ended []string
	for _, e := range events {
		switch e.Type {
		case "message.queued":
			queued = append(queued, e.Data.MessageID)
		case "message.sent":
			sent = append(sent, e.Data.MessageID)
		case "done":
			ended = append(ended, e.Data.MessageID)
			if want := fmt.Sprintf("You said: remember %d", len(ended)-1); e.Data.Failed ||
				!strings.HasSuffix(e.Data.Text, want) {
				t.Errorf("turn %d: %+v", len(ended)-1, e.Data)
			}
		case "message.delta", "tool.output":
			pieces[e.Data.ID] += e.Data.Text
			counts[e.Type]++
		case "message.started", "tool.started", "file.changed":
			counts[e.Type]++
		case "message.completed", "tool.completed":
			counts[e.Type]++
			if whole[e.Data.ID] != "" {
				t.Errorf("%s %s is there twice", e.Type, e.Data.ID)
			}
			whole[e.Data.ID] = e.Data.Text
		}
	}
	for id, text := range whole {
		if pieces[id] != text && text != "written" { // files are not written in pieces
			t.Errorf("%s has the pieces %q of %q", id, pieces[id], text)
		}
	}
	for typ, each := range map[string]int{"message.started": 2, "message.completed": 2, "tool.started": 3,
		"tool.completed": 3, "file.changed": 2} {
		if counts[typ] != each*turns {
			t.Errorf("%d events %s in %d turns", counts[typ], typ, turns)
		}
	}
	for what, ids := range map[string][]string{"sent": sent, "ended": ended} {
		if strings.Join(ids, " ") != strings.Join(queued, " ") || len(ids) != turns {
			t.Errorf("queued %q\n%s %q", queued, what, ids)
		}
	}
}

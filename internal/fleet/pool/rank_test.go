package pool

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/image"
)

// warm is a booted sandbox with a name.
type warm struct {
	engine.Warm
	name      string
	destroyed chan string
}

func (w warm) Handle() engine.Handle { return engine.Handle{Ref: w.name} }

func (w warm) Destroy(context.Context) error {
	w.destroyed <- w.name
	return nil
}

// TestTakeGivesTheBestSandbox checks the order of preference, and that images of other accounts, and those from before
// a rebuild, are never handed out.
func TestTakeGivesTheBestSandbox(t *testing.T) {
	t.Parallel()
	built := time.Unix(1e9, 0)
	mine := image.Image{ID: "img_mine", Built: built, Spec: image.Spec{Owner: "acme", Commands: []string{"RUN x"}}}
	rebuilt := mine
	rebuilt.Built = built.Add(time.Hour)
	theirs := image.Image{ID: "img_theirs", Built: built, Spec: image.Spec{Owner: "other", Commands: []string{"RUN y"}}}
	another := image.Image{ID: "img_another", Built: built,
		Spec: image.Spec{Owner: "acme", Commands: []string{"RUN z"}}}
	limits := engine.Limits{CPU: 1}
	destroyed := make(chan string, 10)
	plain := &spare{warm: warm{name: "plain", destroyed: destroyed}}
	ready := &spare{warm: warm{name: "ready", destroyed: destroyed}, image: mine, done: true}
	pending := &spare{warm: warm{name: "pending", destroyed: destroyed}, image: mine}
	different := &spare{warm: warm{name: "different", destroyed: destroyed}, image: another, done: true}
	foreign := &spare{warm: warm{name: "foreign", destroyed: destroyed}, image: theirs, done: true}
	old := &spare{warm: warm{name: "old", destroyed: destroyed}, image: rebuilt, done: true}
	for name, c := range map[string]struct {
		waiting []*spare
		limits  engine.Limits
		mounts  bool
		want    string // "" for none
	}{
		"prepared":                      {[]*spare{foreign, different, pending, plain, ready}, limits, false, "ready"},
		"plain rather than unfinished":  {[]*spare{different, pending, plain}, limits, false, "plain"},
		"unfinished rather than others": {[]*spare{different, pending}, limits, false, "pending"},
		"prepared with something else":  {[]*spare{foreign, different}, limits, false, "different"},
		"with volumes, plain":           {[]*spare{ready, plain}, limits, true, "plain"},
		"with volumes, any":             {[]*spare{foreign, ready}, limits, true, "ready"},
		"of another account":            {[]*spare{foreign}, limits, false, ""},
		"from before a rebuild":         {[]*spare{old}, limits, false, ""},
		"other limits":                  {[]*spare{ready}, engine.Limits{CPU: 2}, false, ""},
		"none":                          {nil, limits, false, ""},
	} {
		var tasks sync.WaitGroup
		p := &Pool{opts: Options{Limits: limits, Size: len(c.waiting) + 1, Tasks: &tasks}, ctx: t.Context(),
			waiting: append([]*spare(nil), c.waiting...)}
		w := p.Take(c.limits, "acme", mine, c.mounts)
		got, left := "", len(c.waiting)
		if w != nil {
			got = w.Handle().Ref
			left--
		}
		if got != c.want || len(p.waiting) != left {
			t.Errorf("%s: %q, want %q; %d wait", name, got, c.want, len(p.waiting))
		}
	}
	if len(destroyed) > 0 {
		t.Errorf("%s was destroyed", <-destroyed)
	}
}

// TestFullPoolMakesRoom checks that a full pool without a suitable sandbox drops its oldest, and that a request with
// volumes, or of an image build, does not change the expected image.
func TestFullPoolMakesRoom(t *testing.T) {
	t.Parallel()
	theirs := image.Image{ID: "img_theirs", Spec: image.Spec{Owner: "other", Commands: []string{"RUN y"}}}
	mine := image.Image{ID: "img_mine", Spec: image.Spec{Owner: "acme", Commands: []string{"RUN x"}}}
	destroyed := make(chan string, 10)
	var tasks sync.WaitGroup
	p := &Pool{opts: Options{Size: 2, Tasks: &tasks}, ctx: t.Context()}
	for _, name := range []string{"a", "b"} {
		p.waiting = append(p.waiting, &spare{warm: warm{name: name, destroyed: destroyed}, image: theirs, done: true})
	}
	if w := p.Take(engine.Limits{}, "acme", mine, true); w != nil || p.want.ID != "" {
		t.Errorf("got %v, expects %q", w, p.want.ID)
	}
	tasks.Wait()
	if len(destroyed) != 1 || <-destroyed != "a" || len(p.waiting) != 1 {
		t.Errorf("want the oldest destroyed; %d wait", len(p.waiting))
	}
	if w := p.Take(engine.Limits{}, "acme", mine, false); w != nil || p.want.ID != mine.ID || len(p.waiting) != 1 {
		t.Errorf("got %v, expects %q, %d wait: a pool with room drops nothing", w, p.want.ID, len(p.waiting))
	}
	if warm, prepared := p.Counts(); warm != 1 || prepared != 0 {
		t.Errorf("%d warm, %d prepared", warm, prepared)
	}
}

// TestNoPool checks that a nil Pool is always empty.
func TestNoPool(t *testing.T) {
	t.Parallel()
	var p *Pool
	p.Refill()
	if warm, prepared := p.Counts(); warm != 0 || prepared != 0 {
		t.Errorf("%d, %d", warm, prepared)
	}
	if w := p.Take(engine.Limits{}, "acme", image.Image{}, false); w != nil {
		t.Errorf("%v", w)
	}
	if err := p.Drain(t.Context()); err != nil {
		t.Error(err)
	}
}

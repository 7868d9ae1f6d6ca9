// Package memory is what agents remember of each repository from session to session: the knowledge graph of the MCP
// server "memory", in a volume of its own.
//
// The server reads its file anew for every call and writes all of it, and so does Store: an edit of one and of the
// other at the same moment may lose one of them, never damage the file.
package memory

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine/volume"
)

const (
	// Prefix begins the names of the volumes: harvest-memory-OWNER-REPOSITORY.
	Prefix = "harvest-memory-"
	// File is the graph within a volume, as the server takes it in MEMORY_FILE_PATH.
	File = "memory.jsonl"

	seeded  = ".seeded" // says that the volume was filled once
	maxFile = 32 << 20  // bytes of a graph that is read
)

// Entity is something that is remembered, and what is known of it.
type Entity struct {
	Name         string   `json:"name"`
	Type         string   `json:"entityType"`
	Observations []string `json:"observations"`
}

// Relation is how two entities belong together, such as "uses".
type Relation struct {
	From string `json:"from"`
	To   string `json:"to"`
	Type string `json:"relationType"`
}

// Graph is all that is remembered of a repository. As JSON it is the format of memory-seed.json.
type Graph struct {
	Entities  []Entity   `json:"entities"`
	Relations []Relation `json:"relations"`
}

// line is a line of File: an entity or a relation.
type line struct {
	Type         string   `json:"type"`
	Name         string   `json:"name,omitempty"`
	EntityType   string   `json:"entityType,omitempty"`
	Observations []string `json:"observations,omitempty"`
	From         string   `json:"from,omitempty"`
	To           string   `json:"to,omitempty"`
	RelationType string   `json:"relationType,omitempty"`
}

// Decode reads a File. Lines that are no entity and no relation are left out: agents may have written them. Exhausted
// if it is too large.
func Decode(r io.Reader) (Graph, error) {
	g := Graph{Entities: []Entity{}, Relations: []Relation{}}
	text, err := io.ReadAll(io.LimitReader(r, maxFile+1))
	if err != nil {
		return g, errors.Wrapf(err, "read the memory")
	}
	if len(text) > maxFile {
		return g, errors.Remedy(errors.Newf(errors.Exhausted, "the memory has more than %d MiB", maxFile>>20),
			"look at the volume's file %s", File)
	}
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, maxFile)
	for lines.Scan() {
		var l line
		if json.Unmarshal(lines.Bytes(), &l) != nil {
			continue
		}
		switch l.Type {
		case "entity":
			g.Entities = append(g.Entities, Entity{l.Name, l.EntityType, orNone(l.Observations)})
		case "relation":
			g.Relations = append(g.Relations, Relation{l.From, l.To, l.RelationType})
		}
	}
	return g, nil
}

func orNone(list []string) []string {
	if list == nil {
		return []string{}
	}
	return list
}

// Encode returns g as a File.
func (g Graph) Encode() ([]byte, error) {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	for _, v := range g.Entities {
		// The server wants the list, also an empty one.
		if err := e.Encode(struct {
			Type string `json:"type"`
			Entity
		}{"entity", Entity{v.Name, v.Type, orNone(v.Observations)}}); err != nil {
			return nil, errors.Wrapf(err, "encode the memory")
		}
	}
	for _, v := range g.Relations {
		if err := e.Encode(struct {
			Type string `json:"type"`
			Relation
		}{"relation", v}); err != nil {
			return nil, errors.Wrapf(err, "encode the memory")
		}
	}
	return out.Bytes(), nil
}

// Entity returns the entity of that name.
func (g Graph) Entity(name string) (Entity, bool) {
	i := slices.IndexFunc(g.Entities, func(e Entity) bool { return e.Name == name })
	if i < 0 {
		return Entity{}, false
	}
	return g.Entities[i], true
}

// Store is the memory of one account.
type Store struct {
	Volumes volume.Provider // the account's
}

// Info is a memory in a list.
type Info struct {
	Name    string
	Size    int64 // bytes
	Created time.Time
}

// List returns the memories there are, by name.
func (s Store) List(ctx context.Context) ([]Info, error) {
	all, err := s.Volumes.List(ctx)
	if err != nil {
		return nil, err
	}
	found := []Info{}
	for _, v := range all {
		if name, ok := strings.CutPrefix(v.Name, Prefix); ok && name != "" {
			found = append(found, Info{name, v.Size, v.Created})
		}
	}
	return found, nil
}

// Get returns what is remembered. NotFound if there is no such memory.
func (s Store) Get(ctx context.Context, name string) (Graph, error) {
	v, err := s.open(ctx, name)
	if err != nil {
		return Graph{}, err
	}
	return read(ctx, v)
}

func (s Store) open(ctx context.Context, name string) (volume.Volume, error) {
	v, err := s.Volumes.Open(ctx, Prefix+name)
	if errors.KindOf(err) == errors.NotFound || errors.KindOf(err) == errors.Invalid {
		return nil, errors.Remedy(errors.Newf(errors.NotFound, "memory %.100q: does not exist", name),
			"list the memories: harvest memory ls")
	}
	return v, err
}

func read(ctx context.Context, v volume.Volume) (Graph, error) {
	none := Graph{Entities: []Entity{}, Relations: []Relation{}}
	stream, err := v.CopyOut(ctx, File)
	if errors.KindOf(err) == errors.NotFound {
		return none, nil
	}
	if err != nil {
		return none, err
	}
	defer stream.Close()
	archive := tar.NewReader(stream)
	h, err := archive.Next()
	if err == io.EOF || err == nil && h.Typeflag != tar.TypeReg {
		return none, nil // an agent put something else there
	}
	if err != nil {
		return none, errors.Wrapf(err, "read the memory")
	}
	return Decode(archive)
}

// Set remembers an entity instead of what was known under its name. The memory is made if there is none.
func (s Store) Set(ctx context.Context, name string, e Entity) error {
	if err := check(e); err != nil {
		return err
	}
	v, g, err := s.create(ctx, name)
	if err != nil {
		return err
	}
	if i := slices.IndexFunc(g.Entities, func(old Entity) bool { return old.Name == e.Name }); i >= 0 {
		g.Entities[i] = e
	} else {
		g.Entities = append(g.Entities, e)
	}
	return write(ctx, v, g, nil)
}

func check(e Entity) error {
	size := len(e.Name) + len(e.Type)
	for _, text := range e.Observations {
		size += len(text)
	}
	switch {
	case strings.TrimSpace(e.Name) == "" || strings.ContainsAny(e.Name, "\n\x00"):
		return errors.Remedy(errors.Newf(errors.Invalid, "an entry of memory needs a name of one line"),
			`such as "how to test"`)
	case strings.TrimSpace(e.Type) == "":
		return errors.Remedy(errors.Newf(errors.Invalid, "an entry of memory needs a type"), `such as "note"`)
	case size > 1<<20:
		return errors.Newf(errors.Invalid, "an entry of memory is larger than 1 MiB")
	}
	return nil
}

// Remove forgets an entity, and its relations. NotFound if it is not known.
func (s Store) Remove(ctx context.Context, name, entity string) error {
	v, err := s.open(ctx, name)
	if err != nil {
		return err
	}
	g, err := read(ctx, v)
	if err != nil {
		return err
	}
	if _, ok := g.Entity(entity); !ok {
		return errors.Remedy(errors.Newf(errors.NotFound, "nothing is remembered under %.100q", entity),
			"list the names: harvest memory get %s", name)
	}
	g.Entities = slices.DeleteFunc(g.Entities, func(e Entity) bool { return e.Name == entity })
	g.Relations = slices.DeleteFunc(g.Relations, func(r Relation) bool { return r.From == entity || r.To == entity })
	return write(ctx, v, g, nil)
}

// Move adds the memory of one name to that of another, and deletes the first. Of two entities with the same name, the
// one in the second memory stays. NotFound if the first does not exist; Conflict while a sandbox uses it, when it may
// remain beside its copy.
func (s Store) Move(ctx context.Context, from, to string) error {
	if from == to {
		return errors.Newf(errors.Invalid, "memory %.100q: cannot be moved to itself", from)
	}
	old, err := s.open(ctx, from)
	if err != nil {
		return err
	}
	moved, err := read(ctx, old)
	if err != nil {
		return err
	}
	done, err := s.Seeded(ctx, from)
	if err != nil {
		return err
	}
	v, g, err := s.create(ctx, to)
	if err != nil {
		return err
	}
	g.add(moved)
	marks := []string{}
	if done {
		marks = append(marks, seeded)
	}
	if err := write(ctx, v, g, marks); err != nil {
		return err
	}
	return s.Volumes.Delete(ctx, Prefix+from)
}

// create returns the memory of that name, which may be new, and its graph.
func (s Store) create(ctx context.Context, name string) (volume.Volume, Graph, error) {
	if err := volume.CheckName(Prefix + name); err != nil {
		return nil, Graph{}, errors.Remedy(errors.Newf(errors.Invalid, "invalid name of a memory: %.100q", name),
			"give it as OWNER-REPOSITORY")
	}
	v, err := s.Volumes.Create(ctx, Prefix+name)
	if err != nil {
		return nil, Graph{}, err
	}
	g, err := read(ctx, v)
	return v, g, err
}

// add adds the entities and relations of another graph that g does not have.
func (g *Graph) add(more Graph) {
	for _, e := range more.Entities {
		if _, known := g.Entity(e.Name); !known && check(e) == nil {
			g.Entities = append(g.Entities, e)
		}
	}
	for _, r := range more.Relations {
		if !slices.Contains(g.Relations, r) {
			g.Relations = append(g.Relations, r)
		}
	}
}

// Delete forgets everything of a repository. Conflict while a sandbox uses it.
func (s Store) Delete(ctx context.Context, name string) error {
	if _, err := s.open(ctx, name); err != nil {
		return err
	}
	return s.Volumes.Delete(ctx, Prefix+name)
}

// Seed fills a memory with what every one begins with, once: what was forgotten later is not remembered again. It
// reports whether it did. seed is a memory-seed.json.
func (s Store) Seed(ctx context.Context, name string, seed []byte) (bool, error) {
	if done, err := s.Seeded(ctx, name); err != nil || done {
		return false, err
	}
	var begin Graph
	if err := json.Unmarshal(seed, &begin); err != nil {
		return false, errors.Explainf(err, errors.Invalid, "memory-seed.json is not understood")
	}
	v, g, err := s.create(ctx, name)
	if err != nil {
		return false, err
	}
	g.add(begin)
	return true, write(ctx, v, g, []string{seeded})
}

// Seeded reports whether Seed has filled a memory.
func (s Store) Seeded(ctx context.Context, name string) (bool, error) {
	v, err := s.Volumes.Open(ctx, Prefix+name)
	if errors.KindOf(err) == errors.NotFound {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	entries, err := v.ReadDir(ctx, "")
	return slices.ContainsFunc(entries, func(e volume.Entry) bool { return e.Name == seeded }), err
}

// write replaces the graph, and makes empty files. Every user may change them: which one an agent is depends on its
// image.
func write(ctx context.Context, v volume.Volume, g Graph, empty []string) error {
	text, err := g.Encode()
	if err != nil {
		return err
	}
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	put := func(name string, text []byte) error {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o666, Size: int64(len(text)),
			ModTime: time.Now()}); err != nil {
			return err
		}
		_, err := w.Write(text)
		return err
	}
	err = put(File, text)
	for _, name := range empty {
		err = errors.Join(err, put(name, nil))
	}
	if err := errors.Join(err, w.Close()); err != nil {
		return errors.Wrapf(err, "pack the memory")
	}
	return v.CopyIn(ctx, "", &archive)
}

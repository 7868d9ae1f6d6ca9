// Package syncs recognizes commands that flush the files of a directory with the program sync. In Modal's sandboxes,
// `sync PATH` commits the volume at PATH.
package syncs

import (
	"path"
	"slices"
	"strings"

	"github.com/RelevanceAI/harvest/internal/base/pattern"
)

// Flush describes what a command flushes.
type Flush struct {
	// Script is set if the command is a script that runs sync, so that its exit code is not that of sync.
	Script bool `json:"script,omitempty"`
	// All is set if the command flushes everything, or a path that is known only when it runs.
	All   bool     `json:"all,omitempty"`
	Paths []string `json:"paths,omitempty"` // absolute and clean
}

// Covers reports whether the command flushes files of the volume that is mounted at dir.
func (f *Flush) Covers(dir string) bool {
	return f.All || slices.ContainsFunc(f.Paths, func(p string) bool {
		return p == path.Clean(dir) || strings.HasPrefix(p, strings.TrimRight(dir, "/")+"/")
	})
}

// multicall are programs that contain sync, which is their first argument then.
var multicall = []string{"busybox", "toybox", "coreutils"}

// inScript finds sync in a script, with the rest of its line, where a command can begin. Quotes and brackets are
// included for lists of arguments in other languages, such as ["sync", "/data"].
var inScript = pattern.New("(?m)(?:^|[;&|({`!'\"\\[]|\\b(?:then|do|else|exec|sudo|nice|env|busybox|toybox|coreutils|" +
	"timeout[ \\t]+\\S+)[ \\t])[ \\t]*(?:/[\\w./-]*/)?sync((?:['\",]*[ \\t]+['\"]?[^\\s;&|()<>'\"`\\],#]+)*)" +
	"['\"]?[ \\t,]*(?:$|[;&|)}`'\"\\]<>#])")

// Of returns what a command flushes, nil for one that does not run sync. Relative paths start at dir, the command's
// working directory; "" if it is unknown.
func Of(args []string, dir string) *Flush {
	if len(args) == 0 {
		return nil
	}
	name := path.Base(args[0])
	if slices.Contains(multicall, name) && len(args) > 1 {
		args = args[1:]
		name = path.Base(args[0])
	}
	if name == "sync" {
		f := &Flush{}
		f.add(args[1:], dir)
		return f
	}
	f := &Flush{Script: true}
	texts := []string{strings.Join(args, " ")} // for timeout, env and the like
	for _, arg := range args[1:] {
		if strings.ContainsAny(arg, " \t\n;&|") {
			texts = append(texts, arg)
		}
	}
	found := false
	for _, text := range texts {
		for _, match := range inScript().FindAllStringSubmatch(text, -1) {
			found = true
			f.add(words(match[1]), "")
		}
	}
	if !found {
		return nil
	}
	slices.Sort(f.Paths)
	f.Paths = slices.Compact(f.Paths)
	return f
}

var separators = pattern.New(`[\s'",]+`)

// words returns the arguments in a part of a script.
func words(text string) []string {
	return slices.DeleteFunc(separators().Split(text, -1), func(w string) bool { return w == "" })
}

// add adds the operands of sync.
func (f *Flush) add(args []string, dir string) {
	options, operands := true, 0
	for _, arg := range args {
		if options && strings.HasPrefix(arg, "-") {
			options = arg != "--"
			continue
		}
		operands++
		if !path.IsAbs(arg) && dir != "" {
			arg = path.Join(dir, arg)
		}
		if !path.IsAbs(arg) || f.Script && strings.ContainsAny(arg, "$*?~\\") {
			f.All = true
			continue
		}
		f.Paths = append(f.Paths, path.Clean(arg))
	}
	f.All = f.All || operands == 0
}

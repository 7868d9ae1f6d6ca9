// Package python runs Python code in sandboxes.
package python

import (
	"context"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/commands"
)

const (
	program = "python3"
	maxCode = 64 << 20
	// maxInline is the size limit for code that is passed as an argument, since the kernel limits arguments. Longer
	// code precedes the standard input.
	maxInline = 64 << 10
)

// loader reads %d bytes of code from the standard input and runs the code as if it had been an argument. It reads
// exactly these bytes, so that the code can read the rest.
const loader = `def _():
    import os
    left, parts = %d, []
    while left:
        part = os.read(0, min(left, 1 << 20))
        if not part:
            raise SystemExit("the code did not arrive whole")
        parts.append(part)
        left -= len(part)
    return compile(b"".join(parts), "<string>", "exec")
exec(globals().pop("_")())
`

// Check returns Invalid unless code is valid text for Python.
func Check(code string) error {
	switch {
	case strings.TrimSpace(code) == "":
		return errors.Remedy(errors.Newf(errors.Invalid, "no code given"), "give some Python code, such as print(6*7)")
	case len(code) > maxCode:
		return errors.Remedy(errors.Newf(errors.Invalid, "the code has %d bytes, more than the maximum of %d",
			len(code), maxCode), "put data into a file or a volume")
	case strings.ContainsRune(code, 0) || !utf8.ValidString(code):
		return errors.Remedy(errors.Newf(errors.Invalid, "the code is binary data, not text"),
			"give Python source in UTF-8; to run a program, copy it into a sandbox and name it as the command")
	}
	return nil
}

// Exec is Fleet.Exec for Python code: req.Args follow sys.argv[0], and the code can read its standard input.
func Exec(ctx context.Context, f *fleet.Fleet, account, ref, code string,
	req fleet.ExecRequest) (*commands.Execution, error) {
	if err := Check(code); err != nil {
		return nil, errors.Stage(err, "validate")
	}
	if len(code) <= maxInline {
		req.Args = append([]string{program, "-c", code}, req.Args...)
		return f.Exec(ctx, account, ref, req)
	}
	if req.Terminal != nil {
		return nil, errors.Remedy(errors.Stage(errors.Newf(errors.Invalid,
			"the code exceeds %d bytes, the maximum on a terminal: it has %d", maxInline, len(code)), "validate"),
			"run it without a terminal, or copy it into the sandbox as a file")
	}
	stdin := io.Reader(strings.NewReader(code))
	if req.Stdin != nil {
		stdin = io.MultiReader(stdin, req.Stdin)
	}
	req.Stdin = stdin
	req.Args = append([]string{program, "-c", fmt.Sprintf(loader, len(code))}, req.Args...)
	return f.Exec(ctx, account, ref, req)
}

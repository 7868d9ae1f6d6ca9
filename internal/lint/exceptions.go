package lint

// exceptions are breaches that stay, by file and rule, with the reason. One that nothing needs any more is a finding.
var exceptions = map[string]string{
	"internal/testenv/leaks.go time.Sleep":    "nothing tells when a process of others has ended",
	"internal/testenv/binary.go exec.Command": "a build that one test gives up goes on for the next",
}

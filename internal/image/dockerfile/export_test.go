package dockerfile

// The tests in sandboxes use the helpers of those with BuildKit.
var (
	Listing       = listing
	Program       = program
	PushImage     = pushImage
	StartBuildKit = startBuildKit
	TryBuildKit   = tryBuildKit
)

//go:build keeper && !clientonly

package programs

import _ "embed"

//go:embed keeper.zst
var packedKeeper []byte

//go:embed sentry.zst
var packedSentry []byte

//go:embed tools.zst
var packedTools []byte

//go:embed s3.zst
var packedS3 []byte

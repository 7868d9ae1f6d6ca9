#!/bin/sh
set -e
echo "installing top"
